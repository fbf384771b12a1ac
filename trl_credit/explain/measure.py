"""Log-probabilities and entropies of responses that come without them, by a forward pass of a model over each."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..logs import Shard, TokenTexts


_CHUNK = 256  # tokens whose distributions over the vocabulary are in float32 at once


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in evaluation mode, on the accelerator if there is one, and its tokenizer.

    Raises:
        ValueError: there is no such model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {name!r}: {error}") from error
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return model.to(device).eval(), tokenizer


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Any) -> list[int]:
    """Token ids of a prompt: a text as it is, messages by the chat template."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]


def completion_ids(tokenizer: PreTrainedTokenizerBase, response: dict[str, Any]) -> list[int]:
    """The ids that a response came with; else those of its text, and the end token unless it is `truncated`."""
    if response.get("token_ids"):
        return list(response["token_ids"])
    text = response["completion"]
    if not isinstance(text, str):
        text = "".join(message.get("content") or "" for message in text)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids if response.get("truncated") else [*ids, tokenizer.eos_token_id]


def measured(
    shard: Shard, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, temperature: float = 1.0
) -> Shard:
    """The responses with `trainer_logprobs` and `entropy` of a model at a sampling temperature, and with tokens.

    π_old is what the responses came with, else the model itself.
    """
    texts, found = TokenTexts(tokenizer), []
    for response in shard.responses:
        ids, prompt = completion_ids(tokenizer, response), prompt_ids(tokenizer, response["prompt"])
        where = f"response {response['index']} of prompt {response['group']}"
        if not ids or not prompt:
            raise ValueError(
                f"{where}: its {'prompt' if ids else 'completion'} has no token, so nothing can be computed"
            )
        if max(ids) >= (known := model.get_input_embeddings().num_embeddings):
            raise ValueError(
                f"{where}: token id {max(ids)} is none of the model's {known:,}: are they another model's?"
            )
        logps, entropies = _measure(model, prompt, ids, temperature=temperature)
        old = response.get("old_logprobs")
        known = {"token_ids": ids, "tokens": texts.of(ids), "trainer_logprobs": logps, "entropy": entropies}
        found.append({**response, **known, "old_logprobs": old if old and len(old) == len(ids) else logps})
    return Shard(shard.header, shard.trees, found)


@torch.no_grad()
def _measure(
    model: PreTrainedModel, prompt: list[int], completion: list[int], *, temperature: float
) -> tuple[list[float], list[float]]:
    ids = torch.tensor([prompt + completion], device=model.device)
    logits = model(ids, logits_to_keep=len(completion) + 1).logits[0, :-1]
    logps, entropies = [], []
    for part, chosen in zip(logits.split(_CHUNK), ids[0, -len(completion) :].split(_CHUNK), strict=True):
        log_t = (part.float() / temperature).log_softmax(-1)
        logps += log_t.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
        entropies += (-(log_t.exp() * log_t).nan_to_num().sum(-1)).tolist()
    return logps, entropies
