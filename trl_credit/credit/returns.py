"""Advantages of the steps of a response, from rewards at their ends or from scores of the states there.

A table (N, K) has a row per response, groups consecutive, and a column per step. Step k of a response exists if
k < n, its number of steps. A baseline of a response does not contain that response, except GiGPO's as published. With
it, a mean over a group whose size depends on what the policy did is biased (see `trl-credit help theory`).
"""

import torch

from .advantages import leave_one_out_mean
from .scan import reverse_discounted_scan


def returns_to_go(reward_k: torch.Tensor, *, gamma: float, steps: torch.Tensor) -> torch.Tensor:
    """R_k = r_k + γ·R_{k+1}: the discounted return from step k on. Shapes (N, K) → (N, K), 0 beyond the last step.

    Args:
        reward_k (`torch.Tensor`):
            r, shape (N, K).
        gamma (`float`):
            γ in [0, 1], per step.
        steps (`torch.Tensor`):
            n, shape (N,): number of steps of each response.
    """
    inside = _inside(reward_k, steps)
    return reverse_discounted_scan(reward_k.double().masked_fill(~inside, 0.0), decay=gamma).masked_fill(~inside, 0.0)


def to_go_advantages(
    return_k: torch.Tensor, *, baseline: str = "step", num_generations: int, steps: torch.Tensor
) -> torch.Tensor:
    """A_{i,k} = R_{i,k} − b_{i,k}, b from the other responses of the group. Shapes (N, K) → (N, K).

    `step`: b_{i,k} = mean of R_{j,k} over the j ≠ i that reached step k; if there are none, as for `response`.
    `response`: b_{i,k} = mean_{j≠i} R_{j,0}. Both are unbiased, since b_{i,k} does not depend on response i. Nothing is
    divided by a standard deviation. The rule is ours.

    Args:
        return_k (`torch.Tensor`):
            R of [`returns_to_go`], shape (N, K). A row of NaN has no reward: it counts nowhere and gets 0.
        baseline (`str`, *optional*, defaults to `"step"`):
            `"step"` or `"response"`.
        num_generations (`int`):
            Responses per prompt, G.
        steps (`torch.Tensor`):
            n, shape (N,).

    Returns:
        `torch.Tensor`: shape (N, K), 0 beyond the last step, and for responses whose group has no other one with a
        reward.
    """
    whole = leave_one_out_mean(return_k[:, 0], num_generations=num_generations).unsqueeze(1)
    base_k = whole.repeat(1, return_k.size(1))
    if baseline == "step":  # the number of the step is the state in which others are compared
        counted, states_k = _inside(return_k, steps) & ~return_k.isnan(), torch.arange(return_k.size(1))
        states_k = states_k.to(return_k.device).expand_as(return_k)
        of_state, of_row = _states(states_k, counted, num_generations)
        sums, counts = _in_state(return_k[counted], of_state, of_row)
        base_k[counted] = torch.where(counts > 0, sums / counts.clamp(min=1), base_k[counted])
    return _credited(_less(return_k, base_k), steps)


def state_group_advantages(
    return_k: torch.Tensor,
    *,
    outcome: torch.Tensor,
    states_k: torch.Tensor,
    weight: float = 1.0,
    kind: str = "mean",
    num_generations: int,
    steps: torch.Tensor,
) -> torch.Tensor:
    """A_{i,k} = A^E_i + ω A^S_{i,k}: GiGPO (arXiv 2505.10978, Eq. 3 to 8). Shapes (N, K) → (N, K).

    A^E compares R_i with R of all responses of the group, A^S compares R_{i,k} with the returns of all steps of the
    group that begin in the same state. `mean`: minus their mean, which contains the response itself. `std`: then
    divided by their sample standard deviation + 1e-6. Both are the paper's. `loo`: minus the mean of the *other*
    responses, which is ours; 0 if there is none.

    Args:
        return_k (`torch.Tensor`):
            R_{i,k}, shape (N, K), with γ per step. A row of NaN has no reward: it counts nowhere and gets 0.
        outcome (`torch.Tensor`):
            R_i, shape (N,): the sum of the rewards of the response.
        states_k (`torch.Tensor`):
            A number for the state in which each step begins, int64, shape (N, K). States of different groups are never
            compared.
        weight (`float`, *optional*, defaults to 1.0):
            ω.
        kind (`str`, *optional*, defaults to `"mean"`):
            `"mean"`, `"std"` or `"loo"`.
        num_generations (`int`):
            Responses per prompt, G.
        steps (`torch.Tensor`):
            n, shape (N,).

    Returns:
        `torch.Tensor`: shape (N, K), 0 beyond the last step.
    """

    def compared(values: torch.Tensor, states: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        of_state, of_row = _states(states, counted, num_generations)
        sums, counts = _in_state(values[counted], of_state, of_row if kind == "loo" else None)
        gain = torch.where(counts > 0, _less(values[counted], sums / counts.clamp(min=1)), 0.0)
        if kind == "std":
            squares, counts = _in_state(gain.square(), of_state)
            gain = gain / ((squares / (counts - 1).clamp(min=1)).sqrt() + 1e-6)
        return torch.zeros_like(values).masked_scatter(counted, gain)

    outcome_k = outcome.to(return_k.dtype).unsqueeze(1)
    episode_k = compared(outcome_k, torch.zeros_like(states_k[:, :1]), ~outcome_k.isnan())
    step_k = compared(return_k, states_k, _inside(return_k, steps) & ~return_k.isnan())
    return _credited(episode_k + weight * step_k, steps)


def shared_states(states_k: torch.Tensor, *, num_generations: int, steps: torch.Tensor) -> torch.Tensor:
    """Whether a step of another response of the group begins in the same state. Bool, shapes (N, K) → (N, K)."""
    inside = _inside(states_k, steps)
    shared = torch.zeros_like(inside)
    shared[inside] = _in_state(inside[inside].double(), *_states(states_k, inside, num_generations))[1] > 0
    return shared


def difference_advantages(
    value_k: torch.Tensor, *, first: torch.Tensor, num_generations: int, steps: torch.Tensor
) -> torch.Tensor:
    """A_{i,k} = v_{i,k} − v_{i,k−1}, where v_{i,k} scores the state after step k. Shapes (N, K) → (N, K).

    v_{i,−1} is the score of the prompt (`first`), or else the mean over the other responses of the group of their first
    score. The advantages of a response add up to v_{i,n−1} − v_{i,−1}. The rule is ours, after scores of states in
    agent training.

    Args:
        value_k (`torch.Tensor`):
            v, shape (N, K).
        first (`torch.Tensor`):
            Score of the prompt, shape (N,); NaN where unknown.
        num_generations (`int`):
            Responses per prompt, G.
        steps (`torch.Tensor`):
            n, shape (N,): number of scored states. 0: the response gets no credit.

    Returns:
        `torch.Tensor`: shape (N, K), 0 beyond the last step; step 0 too if no score is known before it.
    """
    scored = torch.where(steps > 0, value_k[:, 0], torch.nan)
    base = torch.where(first.isnan(), leave_one_out_mean(scored, num_generations=num_generations), first)
    before_k = torch.cat([base.unsqueeze(1).to(value_k), value_k[:, :-1]], dim=1)
    return _credited(_less(value_k, before_k), steps)


def _states(states_k: torch.Tensor, counted: torch.Tensor, num_generations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A number for the state of each counted step, the same in a group, and one for the state in its response: (C,)."""
    rows = torch.arange(len(states_k), device=states_k.device).unsqueeze(1).expand_as(states_k)[counted]
    _, of_state = torch.stack([rows // num_generations, states_k[counted]], -1).unique(dim=0, return_inverse=True)
    return of_state, torch.stack([of_state, rows], -1).unique(dim=0, return_inverse=True)[1]


def _in_state(
    values: torch.Tensor, of_state: torch.Tensor, of_row: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and number of the values in the state of each step; with `of_row` without those of its response. All (C,)."""

    def total(x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor | float:
        return 0.0 if places is None else torch.zeros_like(x).scatter_add(0, places, x)[places]

    sums, counts = (total(x, of_state) - total(x, of_row) for x in (values, torch.ones_like(values)))
    return sums, counts


def _inside(table_k: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    return torch.arange(table_k.size(1), device=table_k.device) < steps.unsqueeze(1)


def _less(x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """x − base, exactly 0 where they differ by rounding alone, so that equal rewards give no signal."""
    difference = x - base
    return difference.masked_fill(difference.abs() <= 1e-13 * torch.maximum(x.abs(), base.abs()), 0.0)


def _credited(advantage_k: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    return torch.where(_inside(advantage_k, steps) & ~advantage_k.isnan(), advantage_k, 0.0)
