"""Advantages (B, T) of a batch whose rewards lie along its responses, from the rewards of all its groups."""

import functools
import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..credit import returns
from ..credit.tokens import turn_numbers
from ..loss.batch import Batch
from .policy import Policy
from .replay import padded


class Placed(NamedTuple):
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
    config, groups = policy.args, {"num_generations": policy.group_size}
    written_t = padded(scores.written, value=0, width=batch.width).bool()
    numbers = batch.own_rows(batch.rewards_per_func).cpu().double()
    placed = [scores.placed.get(j) or _at_the_end(numbers[:, j], written_t) for j in range(len(scores.weights))]
    columns = [_along_responses(of, width=batch.width) for of in placed]
    steps_placed = sum(len(p) for of in scores.placed.values() for p in of.positions)
    stats: dict[str, tuple[Any, Any]] = {"steps/truncated": (scores.late, steps_placed)}
    if config.returns == "difference":
        advantages = torch.zeros(written_t.shape, dtype=torch.float64)
        for weight, of, (value_t, is_end) in zip(scores.weights, placed, columns, strict=True):
            step_t = (is_end.cumsum(-1) - is_end.long()).masked_fill(~written_t, -1)
            # the last step of a function may end before the response does
            step_t = step_t.masked_fill(step_t >= is_end.sum(-1, keepdim=True), -1)
            first = torch.tensor(of.first, dtype=torch.float64)
            steps, value_k, first = _of_all(policy, value_t, step_t, first)
            credit_k = returns.difference_advantages(value_k, first=first, steps=steps, **groups)
            advantages = advantages + weight * _to_tokens(batch.own_rows(credit_k), step_t)
    else:
        reward_t = sum(weight * value_t for weight, (value_t, _) in zip(scores.weights, columns, strict=True))
        if config.returns == "state_groups":
            step_t = turn_numbers(written_t)
        else:
            end_t = written_t & ~torch.nn.functional.pad(written_t[:, 1:], (0, 1))  # where turns end
            end_t = functools.reduce(operator.or_, (is_end for _, is_end in columns), end_t)
            step_t = end_t.cumsum(-1) - end_t.long()
        step_t = step_t.masked_fill(~written_t, -1)
        stats["steps/per_response"] = int((step_t.amax(-1) + 1).sum()), len(step_t)
        steps, reward_k = _of_all(policy, reward_t, step_t)
        return_k = returns.returns_to_go(reward_k, gamma=config.step_gamma, steps=steps)
        unscored = batch.rewards.cpu().isnan()
        return_k[unscored] = torch.nan
        if config.returns == "to_go":
            credit_k = returns.to_go_advantages(return_k, baseline=config.step_baseline, steps=steps, **groups)
        else:
            states_k = padded(scores.states, value=0, width=reward_k.size(1))
            states_k = policy.processes.gather(states_k.to(policy.processes.device)).cpu()
            outcome = reward_k.sum(-1).masked_fill(unscored, torch.nan)
            state = {"states_k": states_k, "weight": config.state_weight, "kind": config.state_advantage}
            credit_k = returns.state_group_advantages(return_k, outcome=outcome, **state, steps=steps, **groups)
            shared = returns.shared_states(states_k, steps=steps, **groups)
            one = 0.0 if policy.log.is_further_call else 1 / policy.processes.count
            stats["steps/shared_states"] = (int(shared.sum()) * one, int(steps.sum()) * one)
        advantages = _to_tokens(batch.own_rows(credit_k), step_t)
    policy.record(stats)
    return advantages.float().to(policy.processes.device)


def shown_rewards(scores: StepScores, *, width: int) -> torch.Tensor | None:
    """The weighted rewards at the ends of steps, of all functions, shape (B, T), NaN elsewhere; `None` without any."""
    if not scores.placed:
        return None
    columns = [_along_responses(of, width=width) for of in scores.placed.values()]
    reward_t = sum(scores.weights[j] * value_t for j, (value_t, _) in zip(scores.placed, columns, strict=True))
    is_end = torch.stack([is_end for _, is_end in columns]).any(0)
    return reward_t.masked_fill(~is_end, torch.nan).float()


def _along_responses(placed: Placed, *, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rewards of one function at the tokens that they lie at, 0 elsewhere, and which tokens these are: (B, T)."""
    value_t = torch.zeros(len(placed.positions), width, dtype=torch.float64)
    is_end = torch.zeros(value_t.shape, dtype=torch.bool)
    for i, (where, values) in enumerate(zip(placed.positions, placed.values, strict=True)):
        value_t[i, where], is_end[i, where] = values, True
    return value_t, is_end


def _at_the_end(numbers: torch.Tensor, written_t: torch.Tensor) -> Placed:
    """One number per response, shape (B,), at its last token; nowhere where it is NaN."""
    ends = [written.nonzero().flatten()[-1:] for written in written_t]
    scored = [where if not number.isnan() else where[:0] for where, number in zip(ends, numbers, strict=True)]
    values = [number.expand(len(where)) for where, number in zip(scored, numbers, strict=True)]
    return Placed(scored, values, [torch.nan] * len(scored))


def _of_all(
    policy: Policy, value_t: torch.Tensor, step_t: torch.Tensor, *columns: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """For the responses of all processes: number of steps (N,), sum of the values of each step (N, K), and further
    columns (N,), on the CPU. Collective."""
    steps = step_t.amax(-1) + 1
    count = max(1, policy.processes.max(int(steps.max())))
    value_k = torch.zeros(len(step_t), count + 1, dtype=torch.float64)
    value_k = value_k.scatter_add(-1, step_t.where(step_t >= 0, count), value_t)[:, :count]
    table = torch.cat([steps.double().unsqueeze(1), value_k, *(column.unsqueeze(1) for column in columns)], 1)
    # it is gathered as integers, since MPS has no float64
    everyone = policy.processes.gather(table.view(torch.int64).to(policy.processes.device)).cpu().view(torch.float64)
    return everyone[:, 0].long(), everyone[:, 1 : count + 1], *everyone[:, count + 1 :].unbind(1)


def _to_tokens(advantage_k: torch.Tensor, step_t: torch.Tensor) -> torch.Tensor:
    return torch.where(step_t >= 0, advantage_k.gather(-1, step_t.clamp(min=0)), 0.0)
