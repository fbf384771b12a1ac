"""What the methods with segments need to explain responses: continuations, and what they would cost."""

import itertools
from typing import Any

import torch
from datasets import Dataset

from ..algorithms import ALGORITHMS
from ..config import CreditConfig
from ..logs import Shard
from ..rewards.signature import required_parameters
from ..rollouts.chain import chain_credit, find_boundaries
from .measure import prompt_ids


# what a reward function is given whatever the data
_GIVEN = ("prompts", "completions", "completion_ids", "completions_ids", "trainer_state", "log_metric", "log_extra")


def cost(shard: Shard, config: CreditConfig) -> str:
    """What an algorithm with segments would have to generate, in a sentence."""
    if config.rollouts == "tree":
        leaves = 1
        for children in config.tree_branching:
            leaves *= children
        prompts = len({response["group"] for response in shard.responses})
        return (
            f"it samples responses of its own, as a tree of {leaves} leaves for each of {prompts} prompts: train with "
            "it and log_credit to look at them"
        )
    boundaries = _boundaries(shard, config)
    states = int(boundaries.sum())
    lengths = torch.tensor([len(response["tokens"]) for response in shard.responses]).unsqueeze(1)
    left = ((lengths - torch.arange(boundaries.size(1))) * boundaries).sum().item() * config.rollouts_per_state
    return (
        f"it values {states:,} state{'s' * (states != 1)} by {config.rollouts_per_state * states:,} continuations, of "
        f"about {left:,} tokens in all: give --model and --reward to have them made"
    )


def _boundaries(shard: Shard, config: CreditConfig) -> torch.Tensor:
    """Where segments would begin, shape (B, T)."""
    width = max(len(response["tokens"]) for response in shard.responses)
    old_t, mask_t = torch.zeros(len(shard.responses), width), torch.zeros(len(shard.responses), width)
    texts: list[list[str]] = []
    for i, response in enumerate(shard.responses):
        n = len(response["tokens"])
        old_t[i, :n] = torch.tensor([x or 0.0 for x in response["old_logprobs"]])
        mask_t[i, :n] = 1
        texts.append(response["tokens"])
    # a splitter of steps reads texts: the tokens stand for themselves, by their place
    flat = [text for row in texts for text in row]
    whole, ends = "".join(flat), [0, *itertools.accumulate(map(len, flat))]
    starts = [0, *itertools.accumulate(map(len, texts))]
    places = [range(start, start + len(row)) for start, row in zip(starts, texts, strict=False)]

    def decode(ids: list[int]) -> str:  # of places that follow each other
        return whole[ends[ids[0]] : ends[ids[-1] + 1]] if ids else ""

    given = {"completion_ids": places, "decode": decode, "mask_t": mask_t}
    return find_boundaries(config, old_logp_t=old_t, **given)[0]


def rolled_out(
    shard: Shard, name: str, *, model: Any, tokenizer: Any, reward: Any, seed: int, settings: dict[str, Any]
) -> tuple[CreditConfig, tuple[torch.Tensor, torch.Tensor]]:
    """Advantages and segment numbers of a chain, shapes (B, T), by continuations that a model makes and a function
    scores, as the algorithm's own trainer would have them.

    Raises:
        ValueError: the reward function needs a column that these responses lack, or returns what it may not.
    """
    config_class, trainer_class = ALGORITHMS[name]
    groups: dict[int, list[int]] = {}
    for place, response in enumerate(shard.responses):
        groups.setdefault(response["group"], []).append(place)
    largest = max(map(len, groups.values()))
    config = config_class(
        num_generations=largest,
        per_device_train_batch_size=largest,
        max_completion_length=max(len(response["tokens"]) for response in shard.responses),
        seed=seed,
        save_strategy="no",
        **settings,
    )
    rows = [_row(response) for response in shard.responses]
    asked = [name for name in required_parameters(reward) if name not in _GIVEN and name not in rows[0]]
    if asked:
        raise ValueError(
            f"--reward asks for {asked[0]!r}, which these rollouts do not hold: give them as JSONL with that field"
        )
    trainer = trainer_class(model, reward, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    torch.manual_seed(seed)
    width = max(len(response["tokens"]) for response in shard.responses)
    advantages = torch.zeros(len(rows), width, dtype=torch.float64)
    ids = torch.full((len(rows), width), -1)
    for places in groups.values():
        part = [shard.responses[place] for place in places]
        lengths = [len(response["tokens"]) for response in part]
        old_t, mask_t = (torch.zeros(len(part), max(lengths), device=trainer.device) for _ in range(2))
        for i, response in enumerate(part):
            old_t[i, : lengths[i]] = torch.tensor([x or 0.0 for x in response["old_logprobs"]])
            mask_t[i, : lengths[i]] = 1
        found = chain_credit(
            trainer,
            [rows[place] for place in places],
            prompt_ids=[prompt_ids(tokenizer, response["prompt"]) for response in part],
            completion_ids=[response["token_ids"] for response in part],
            old_logp_t=old_t,
            rewards=torch.tensor([response["reward"] for response in part], device=trainer.device),
            mask_t=mask_t,
        )
        for i, place in enumerate(places):
            advantages[place, : lengths[i]] = found.advantages[i, : lengths[i]].double().cpu()
            ids[place, : lengths[i]] = found.segment_ids[i, : lengths[i]].cpu()
    return config, (advantages, ids)


def _row(response: dict[str, Any]) -> dict[str, Any]:
    """The row of a data set that a response belongs to: its prompt, and what else stands beside it."""
    known = ("group", "index", "completion", "reward", "rewards", "truncated", "kind", "credit", "kl_credit", "nodes")
    return {
        name: value
        for name, value in response.items()
        if name not in known and not (isinstance(value, list) and len(value) == len(response["tokens"]))
    }
