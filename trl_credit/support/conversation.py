"""The text of prompts and responses that may be conversations."""


def response_text(completion: str | list[dict]) -> str:
    """The text of a response. A conversation has one only if the model wrote its last message.

    A text cut to nothing leaves the message of a tool last, which may hold the answer of whoever wrote the tool.
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    return _text(last.get("content")) if last.get("role") == "assistant" else ""


def asked_in(prompt: str | list[dict]) -> str:
    """The text of a prompt; in a conversation, the last message of the user."""
    if isinstance(prompt, str):
        return prompt
    contents = [turn.get("content") for turn in prompt if turn.get("role") == "user"]
    return _text(contents[-1]) if contents else ""


def _text(content: object) -> str:
    """The text of a message, which may be in blocks beside images."""
    if isinstance(content, list):
        return " ".join(str(block.get("text") or "") for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""
