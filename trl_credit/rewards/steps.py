"""Rewards along a response: what reward functions may return besides one number, and the ledger that keeps it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, SupportsFloat

import numpy as np
import torch


UNITS = ("char", "token", "turn")


@dataclass(frozen=True)
class StepRewards:
    """Rewards at the ends of steps of one response: what a reward function may return for a response.

    ```python
    def tests_passed(completions, tests, **kwargs):
        return [StepRewards(ends=[120, 340], values=[1.0, 0.0]) for completion in completions]
    ```

    A bare list of pairs (end, value) means `unit="char"`. Instead, a process reward model or a teacher may return an
    array with a value per token, of the length of `completion_ids`.

    Args:
        ends (sequence of `int`):
            How many characters, tokens or turns of the response come before the end of each step, ascending.
            Characters are those of the text that the function gets; tokens those of `completion_ids`, with results of
            tools; turns those that the policy wrote. A step that ends inside a tool's result belongs to the turn before
            it. With `returns="difference"`, 0 is the state after the prompt.
        values (sequence of `float` or `None`):
            The reward of each step, or with `returns="difference"` the score of the state at its end. `None`: not
            scored.
        unit (`str`, *optional*, defaults to `"char"`):
            `"char"`, `"token"` or `"turn"`.

    Raises:
        ValueError: the lengths differ, ends are not ascending, a value is not finite, or the unit is unknown.
    """

    ends: Sequence[int]
    values: Sequence[float | None]
    unit: str = "char"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(map(repr, UNITS))}, got {self.unit!r}")
        ends, values = _listed(self.ends), _numbers(_listed(self.values))
        if len(ends) != len(values):
            raise ValueError(f"{len(ends)} ends and {len(values)} values: give one value for each end")
        if not all(isinstance(x, int) for x in ends) or any(a >= b for a, b in pairwise([-1, *ends])):
            raise ValueError(f"ends must be whole numbers from 0 on, each above the one before, got {ends!r:.200}")
        object.__setattr__(self, "ends", tuple(ends))
        object.__setattr__(self, "values", tuple(values))

    def total(self, *, of_states: bool) -> float | None:
        """The reward of the response: the sum, or of scores of states the last one; `None` if nothing was scored."""
        if not (known := [x for x in self.values if x is not None]):
            return None if self.values or of_states else 0.0
        return known[-1] if of_states else math.fsum(known)


# what a function returned for a response: nothing, a number, steps, or a value per token (NaN: not scored)
ResponseReward = float | StepRewards | torch.Tensor | None


class StepLedger:
    """What reward functions returned besides numbers, from the call of a function until the trainer takes it.

    Args:
        of_states (`bool`, *optional*, defaults to `False`):
            Whether rewards score states (`returns="difference"`), so that the last one is that of the response.

    Attributes:
        written: For each response, which of its tokens the policy wrote (1) and which a tool (0); `None`: all.
    """

    def __init__(self, *, of_states: bool = False) -> None:
        self.of_states = of_states
        self.written: Sequence[Sequence[int]] | None = None
        self._kept: dict[int, list[ResponseReward]] = {}

    def note(self, column: int, rewards: list[ResponseReward]) -> list[float | None]:
        """Keeps what function number `column` returned, if it is more than numbers, and returns what TRL gets of it."""
        self._kept.pop(column, None)
        if any(isinstance(x, (StepRewards, torch.Tensor)) for x in rewards):
            self._kept[column] = rewards
        return [self.total(reward, i) for i, reward in enumerate(rewards)]

    def keep_unchanged(self, rewards: torch.Tensor) -> None:
        """Gives a response whose reward is no longer the total of its steps that number alone; `rewards` (N,
        functions)."""
        for column, kept in self._kept.items():
            totals = [self.total(reward, i) for i, reward in enumerate(kept)]
            total = torch.tensor([math.nan if x is None else x for x in totals], dtype=torch.float64)
            reward = rewards[:, column].cpu().double()
            for i in (~torch.isclose(reward, total, rtol=1e-6, atol=0.0, equal_nan=True)).nonzero().flatten().tolist():
                kept[i] = None if reward[i].isnan() else reward[i].item()

    def take(self) -> dict[int, list[ResponseReward]]:
        """What was kept, by the number of the function. Forgets it."""
        kept, self._kept = self._kept, {}
        return kept

    def total(self, reward: ResponseReward, i: int) -> float | None:
        """The reward of response `i`, which TRL logs and sums."""
        if isinstance(reward, StepRewards):
            return reward.total(of_states=self.of_states)
        if isinstance(reward, torch.Tensor):
            if not len(known := reward[self.scored(reward, i)]):
                return None
            return known[-1].item() if self.of_states else known.sum().item()
        return reward

    def scored(self, value_t: torch.Tensor, i: int) -> torch.Tensor:
        """Which tokens of response `i` have a value and were written by the policy: bool, shape (T,)."""
        known = ~value_t.isnan()
        return known if self.written is None else known & torch.tensor(self.written[i], dtype=torch.bool)


def read_reward(reward: Any, *, tokens: int | None) -> ResponseReward:
    """What a function returned for one response of `tokens` tokens (`None`: unknown).

    Raises:
        ValueError: it is nothing that a function may return; the message says why, without the function's name.
    """
    if reward is None or isinstance(reward, StepRewards):
        return reward
    is_array = isinstance(reward, (np.ndarray, torch.Tensor)) and math.prod(reward.shape) != 1
    if not is_array and not isinstance(reward, (list, tuple)):
        return _numbers([reward])[0]
    values = _listed(reward)
    if all(isinstance(x, (list, tuple)) and len(x) == 2 for x in values):
        return StepRewards(*zip(*values, strict=True)) if values else StepRewards((), ())
    if len(numbers := _numbers(values)) != tokens:
        length = "unknown length" if tokens is None else f"{tokens} tokens"
        raise ValueError(f"{len(numbers)} values for a response of {length} (one per token of completion_ids)")
    return torch.tensor([math.nan if x is None else x for x in numbers], dtype=torch.float64)


def as_float(value: Any) -> float | None:
    """A number as `float`, also of NumPy and torch; `None` for anything else."""
    try:
        plain = value.item() if hasattr(value, "item") else value
        return float(plain) if isinstance(plain, SupportsFloat) else None
    except (ArithmeticError, RuntimeError, TypeError, ValueError):  # an array of several numbers, an integer too large
        return None


def as_number(value: Any) -> float | None:
    """A finite number as `float`; `None` for anything else."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _numbers(values: list) -> list[float | None]:
    """Finite numbers, and `None` where there is `None`. Raises `ValueError` for anything else."""
    numbers = [as_number(x) for x in values]
    if any(x is None and y is not None for x, y in zip(numbers, values, strict=True)):
        raise ValueError("values must be finite numbers, or None for not scored")
    return numbers


def _listed(values: Any) -> list:
    """A sequence or array as a list of plain values."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
