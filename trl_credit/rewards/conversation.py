"""The text of prompts and responses that may be conversations."""


def response_text(completion: str | list[dict]) -> str:
    """The text of a response; empty if a conversation ends without one, as in a tool call."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    return content if isinstance(content, str) else ""


def asked_in(prompt: str | list[dict]) -> str:
    """The text of a prompt; in a conversation, the last message of the user."""
    if isinstance(prompt, str):
        return prompt
    contents = [turn.get("content") for turn in prompt if turn.get("role") == "user"] or [""]
    if isinstance(contents[-1], list):  # blocks of text and images
        return " ".join(str(block.get("text", "")) for block in contents[-1] if isinstance(block, dict))
    return response_text([{"content": contents[-1]}])
