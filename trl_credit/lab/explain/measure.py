"""Log-probabilities, entropies and score sizes of responses, computed by one forward pass of a model per response."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ...data.prompts import prompt_ids
from ...observe.schema import Shard
from ...observe.token_texts import TokenTexts
from ...support.adapters import adapter_base, tokenizer_source


Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
_CHUNK = 256  # tokens whose distributions over the vocabulary are in float32 at the same time


def load(name: str, *, trust_remote_code: bool = False) -> Loaded:
    """A model in evaluation mode, on the accelerator if there is one, and its tokenizer.

    Raises:
        ValueError: the model cannot be loaded.
    """
    try:
        adapter_base(name, says="loaded on it")
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_source(name), trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {name!r}: {error}") from error
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return model.to(device).eval(), tokenizer


def _completion_ids(tokenizer: PreTrainedTokenizerBase, response: dict[str, Any]) -> list[int]:
    """The response's `token_ids`, or those of its text, with the end token unless it is `truncated`."""
    if response.get("token_ids"):
        return list(response["token_ids"])
    text = response["completion"]
    if not isinstance(text, str):
        text = "".join(message.get("content") or "" for message in text)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids if response.get("truncated") else [*ids, tokenizer.eos_token_id]


def measured(shard: Shard, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Shard:
    """The responses with their tokens, and with `trainer_logprobs`, `entropy` and `gini` of a model at their sampling
    temperature, that of the header. `gini` is 1 − Σ_a p_a², the mean squared size of the score in the logits.

    Log-probabilities under π_old are kept if the responses have them; otherwise π_old is the model.

    Raises:
        ValueError: a prompt or completion has no token, or has a token that the model does not know.
    """
    texts, responses = TokenTexts(tokenizer), []
    size = model.get_input_embeddings().num_embeddings
    for response in shard.responses:
        ids = _completion_ids(tokenizer, response)
        prompt = response.get("prompt_token_ids") or prompt_ids(tokenizer, response["prompt"])
        where = f"response {response['index']} of prompt {response['group']}"
        if not ids or not prompt:
            raise ValueError(f"{where}: its {'prompt' if ids else 'completion'} has no token, so it has no probability")
        if (largest := max(*ids, *prompt)) >= size:
            raise ValueError(f"{where}: token id {largest} is not one of the model's {size:,}: is it another model's?")
        logps, entropies, gini = _columns(model, prompt, ids, temperature=shard.header["temperature"])
        columns = {"token_ids": ids, "tokens": texts.of(ids), "trainer_logprobs": logps, "entropy": entropies}
        old = response.get("old_logprobs") or ()
        responses.append({**response, **columns, "gini": gini, "old_logprobs": old if len(old) == len(ids) else logps})
    return Shard(shard.header, shard.trees, responses)


@torch.no_grad()
def _columns(
    model: PreTrainedModel, prompt: list[int], completion: list[int], *, temperature: float
) -> tuple[list[float], list[float], list[float]]:
    ids = torch.tensor([prompt + completion], device=model.device)
    logits = model(ids, logits_to_keep=len(completion) + 1).logits[0, :-1]
    logps, entropies, gini = [], [], []
    for part, chosen in zip(logits.split(_CHUNK), ids[0, -len(completion) :].split(_CHUNK), strict=True):
        log_t = (part.float() / temperature).log_softmax(-1)
        logps += log_t.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
        entropies += (-(log_t.exp() * log_t).nan_to_num().sum(-1)).tolist()
        gini += (1 - (2 * log_t).exp().sum(-1)).tolist()
    return logps, entropies, gini
