"""Values of states by continuations from there, in memory that grows with the tokens of the responses.

A state is (row, b), the first b tokens of a response. All prefixes together have a number of tokens that grows with the
square of a response's length, so none is kept.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .policy import Policy


PART_ROWS = 4  # responses in a call of the reward functions, per row of the batch …
PART_TOKENS = 2**17  # … or as many as have this many tokens, if these are more


@dataclass
class Prefixes(Sequence[list[int]]):
    """Prompt and written tokens of each state, a list made whenever it is asked for.

    Attributes:
        places: (row, b) of each state.
        prompt_ids, completion_ids: Token ids of the rows.
    """

    places: Sequence[tuple[int, int]]
    prompt_ids: Sequence[list[int]]
    completion_ids: Sequence[list[int]]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> list[int]:
        row, b = self.places[i]
        return self.prompt_ids[row] + self.completion_ids[row][:b]


def rollout_values(
    policy: Policy,
    inputs: Sequence[dict[str, Any]],
    places: Sequence[tuple[int, int]],
    *,
    prompt_ids: Sequence[list[int]],
    completion_ids: Sequence[list[int]],
    most: int,
) -> tuple[torch.Tensor, int]:
    """V of every state, and the number of tokens generated for it. Collective.

    All prefixes go to the policy at once. Whole responses go to the reward functions in parts, those from one state
    together: `rollout_batch_size` of them, else by `PART_ROWS` and `PART_TOKENS`.

    Args:
        policy ([`Policy`]):
            Continues prefixes and scores responses.
        inputs (sequence of `dict`):
            Rows of the data set, at least one and as many on every process.
        places (sequence of `tuple[int, int]`):
            (row, b) of each state. May be empty where another process has some.
        prompt_ids, completion_ids (sequences of `list[int]`):
            Token ids of the rows.
        most (`int`):
            The largest number of states of all processes.

    Returns:
        `tuple[torch.Tensor, int]`: values, float, shape (states,), NaN where no reward function applied; tokens.
    """
    n = policy.args.rollouts_per_state
    if most == 0:
        return torch.zeros(0, device=policy.processes.device), 0
    budgets = [policy.remaining_budget(len(prompt_ids[row]), b) for row, b in places]
    texts = {"prompt_ids": prompt_ids, "completion_ids": completion_ids}
    with policy.timed("rollouts"):
        if policy.args.segmentation == "turns":
            scores, added = policy.continue_turns(places, n=n, budgets=budgets, most=most, **texts)
            rewards = policy.total_reward(scores)
        else:
            continuations = policy.continue_prefixes(Prefixes(places, **texts), n=n, budgets=budgets)
            added = [array("i", c.ids) for c in continuations]
    if policy.args.segmentation != "turns":
        # as many on every process, so that all make the same calls
        default = max(PART_ROWS * len(inputs), PART_TOKENS // policy.args.max_completion_length)
        size = max(1, (policy.args.rollout_batch_size or default) // n)
        parts = []
        for first in range(0, most, size):
            part = [(i, *places[i]) for i in range(first, min(first + size, len(places)))]
            examples = [inputs[row] for _, row, _ in part for _ in range(n)] or inputs[:1]
            responses = [
                completion_ids[row][:b] + ids.tolist() for i, row, b in part for ids in added[n * i : n * (i + 1)]
            ]
            scores = policy.score_responses(examples, responses, most=n * min(size, most - first))
            parts.append(policy.total_reward(scores))
        rewards = torch.cat(parts)
    rewards = with_truncation(policy, rewards.float(), added, [x for x in budgets for _ in range(n)])
    return rewards.view(-1, n).nanmean(1), sum(map(len, added))


def with_truncation(
    policy: Policy, rewards: torch.Tensor, ids: Sequence[Sequence[int]], budgets: Sequence[int]
) -> torch.Tensor:
    """Rewards (n,), replaced by `truncated_value` for what did not end within its budget. NaN stays NaN."""
    if policy.args.truncated_value is None:
        return rewards
    ended = [policy.is_finished(x, budget) for x, budget in zip(ids, budgets, strict=True)]
    ended = torch.tensor(ended, dtype=torch.bool, device=rewards.device)
    return rewards.where(ended | rewards.isnan(), policy.args.truncated_value)
