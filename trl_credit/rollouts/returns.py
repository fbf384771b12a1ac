"""Advantages (B, T) of a batch whose rewards lie along its responses, from the rewards of all its groups."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ..credit import returns
from ..credit.tokens import turn_numbers
from ..loss.batch import Batch
from .policy import Policy
from .replay import padded


@dataclass
class Placed:
    """The rewards that one function gave at tokens of the responses of this process.

    Attributes:
        positions: For each response, the tokens that end a step with a reward, ascending, int64, shape (S,).
        values: Their rewards, float64, shape (S,).
        first: For each response, the score of the state after the prompt; NaN where unknown.
    """

    positions: list[torch.Tensor]
    values: list[torch.Tensor]
    first: list[float]


@dataclass
class StepScores:
    """What rewards say of the responses of this process besides one number each.

    Attributes:
        written: For each response, which of its tokens the policy wrote (1) and which a tool (0).
        weights: Weight of each reward function in the total.
        placed: Rewards along responses, by the number of their function. Other functions gave numbers.
        states: For each response, a number for the state of its environment before each turn; `None` if not needed.
        late: Steps that end after the last token of a truncated response. Their reward is at that token.
    """

    written: list[list[int]]
    weights: list[float]
    placed: dict[int, Placed] = field(default_factory=dict)
    states: list[list[int]] | None = None
    late: int = 0


def return_advantages(policy: Policy, batch: Batch, scores: StepScores) -> torch.Tensor:
    """A of every token by `config.returns`, shape (B, T), 0 where the policy did not write. Collective.

    Responses count in the baselines of others as they were scored, also those that the loss leaves out.
    """
    config, width = policy.args, batch.width
    written_t = padded(scores.written, value=0, width=width).bool()
    own = batch.own_rows(batch.rewards_per_func).cpu().double()
    turns, steps = turn_numbers(written_t), int(sum(len(p) for of in scores.placed.values() for p in of.positions))
    stats: dict[str, tuple[Any, Any]] = {"steps/truncated": (scores.late, steps)}
    if config.returns == "difference":
        found = torch.zeros(written_t.shape, dtype=torch.float64)
        for j, weight in enumerate(scores.weights):
            table = _table_of(scores, j, own[:, j], written_t)
            found += weight * _differences(policy, batch, *table, written_t=written_t)
    else:
        reward_t, end_t = torch.zeros(written_t.shape, dtype=torch.float64), _is_last(written_t)
        for j, weight in enumerate(scores.weights):
            value_t, is_end, _ = _table_of(scores, j, own[:, j], written_t)
            reward_t += weight * value_t
            end_t |= is_end
        step_t = turns if config.returns == "state_groups" else end_t.cumsum(-1) - end_t.long()
        step_t = step_t.masked_fill(~written_t, -1)
        stats["steps/per_response"] = int((step_t.amax(-1) + 1).sum()), len(step_t)
        found, more = _from_returns(policy, batch, scores, reward_t, step_t)
        stats |= more
    policy.record(stats)
    return found.float().to(policy.processes.device)


def shown_rewards(scores: StepScores, *, width: int) -> torch.Tensor | None:
    """The weighted rewards at the ends of steps, of all functions, shape (B, T), NaN elsewhere; `None` without any."""
    if not scores.placed:
        return None
    shown_t = torch.full((len(scores.written), width), torch.nan, dtype=torch.float64)
    for j, of in scores.placed.items():
        for i, (where, values) in enumerate(zip(of.positions, of.values, strict=True)):
            shown_t[i, where] = shown_t[i, where].nan_to_num(nan=0.0) + scores.weights[j] * values
    return shown_t.float()


Table = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _table_of(scores: StepScores, j: int, numbers: torch.Tensor, written_t: torch.Tensor) -> Table:
    """Rewards of function `j` (B, T), where its steps end (B, T), and the scores of the prompts (B,)."""
    value_t, end_t = torch.zeros(written_t.shape, dtype=torch.float64), torch.zeros_like(written_t)
    first = torch.full((len(written_t),), torch.nan, dtype=torch.float64)
    if (placed := scores.placed.get(j)) is None:  # one number, at the end of the response
        end_t = _is_last(written_t) & (written_t.cumsum(-1) == written_t.sum(-1, keepdim=True))
        end_t &= ~numbers.isnan().unsqueeze(1)
        return torch.where(end_t, numbers.unsqueeze(1), 0.0), end_t, first
    for i, (where, values) in enumerate(zip(placed.positions, placed.values, strict=True)):
        value_t[i, where], end_t[i, where] = values, True
    return value_t, end_t, torch.tensor(placed.first, dtype=torch.float64)


def _from_returns(
    policy: Policy, batch: Batch, scores: StepScores, reward_t: torch.Tensor, step_t: torch.Tensor
) -> tuple[torch.Tensor, dict[str, tuple[Any, Any]]]:
    config, size = policy.args, policy.group_size
    steps, reward_k = _as_table(policy, reward_t, step_t)
    steps, reward_k = _of_all(policy, steps, reward_k)
    return_k = returns.returns_to_go(reward_k, gamma=config.step_gamma, steps=steps)
    unscored = batch.rewards.cpu().isnan()
    return_k[unscored] = torch.nan
    if config.returns == "to_go":
        found = returns.to_go_advantages(return_k, baseline=config.step_baseline, num_generations=size, steps=steps)
        return _to_tokens(batch.own_rows(found), step_t), {}
    states_k = torch.zeros(len(step_t), reward_k.size(1), dtype=torch.long)
    for row, known in zip(states_k, scores.states, strict=True):
        row[: len(known)] = torch.tensor(known, dtype=torch.long)
    states_k = policy.processes.gather(states_k.to(policy.processes.device)).cpu()
    found = returns.state_group_advantages(
        return_k,
        outcome=reward_k.sum(-1).masked_fill(unscored, torch.nan),
        states_k=states_k,
        weight=config.state_weight,
        num_generations=size,
        steps=steps,
    )
    shared = returns.shared_states(states_k, num_generations=size, steps=steps)
    one = 0.0 if policy.log.is_further_call else 1 / policy.processes.count
    return _to_tokens(batch.own_rows(found), step_t), {
        "steps/shared_states": (int(shared.sum()) * one, int(steps.sum()) * one)
    }


def _differences(
    policy: Policy,
    batch: Batch,
    value_t: torch.Tensor,
    end_t: torch.Tensor,
    first: torch.Tensor,
    *,
    written_t: torch.Tensor,
) -> torch.Tensor:
    """Credit (B, T) of the steps of one function, the last of which may end before the response does. Collective."""
    step_t = (end_t.cumsum(-1) - end_t.long()).masked_fill(~written_t, -1)
    step_t = step_t.masked_fill(step_t >= end_t.sum(-1, keepdim=True), -1)
    steps, value_k = _as_table(policy, value_t, step_t)
    steps, value_k, first = _of_all(policy, steps, value_k, first)
    found = returns.difference_advantages(value_k, first=first, num_generations=policy.group_size, steps=steps)
    return _to_tokens(batch.own_rows(found), step_t)


def _as_table(policy: Policy, value_t: torch.Tensor, step_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of steps (B,) and the sum of the values of each step (B, K); K is that of all processes. Collective."""
    steps = step_t.amax(-1) + 1
    count = max(1, policy.processes.max(int(steps.max())))
    table = torch.zeros(len(step_t), count + 1, dtype=torch.float64)
    place_t = step_t.where(step_t >= 0, count)
    return steps, table.scatter_add(-1, place_t, value_t)[:, :count]


def _of_all(policy: Policy, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Tensors (B, …) of all processes, on the CPU. One collective call."""
    device = policy.processes.device
    kind = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    flat = [x.unsqueeze(1) if x.dim() == 1 else x for x in tensors]
    everyone = policy.processes.gather(torch.cat([x.to(kind) for x in flat], 1).to(device)).cpu().double()
    parts = everyone.split([x.size(1) for x in flat], 1)
    return [part.squeeze(1).to(x.dtype) if x.dim() == 1 else part for part, x in zip(parts, tensors, strict=True)]


def _to_tokens(advantage_k: torch.Tensor, step_t: torch.Tensor) -> torch.Tensor:
    return torch.where(step_t >= 0, advantage_k.gather(-1, step_t.clamp(min=0)), 0.0)


def _is_last(written_t: torch.Tensor) -> torch.Tensor:
    """The last token of each turn, bool, shape (B, T)."""
    return written_t & ~torch.nn.functional.pad(written_t[:, 1:], (0, 1))
