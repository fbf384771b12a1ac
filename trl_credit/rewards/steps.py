"""Rewards along a response: what reward functions may return besides one number, and the ledger that keeps it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, SupportsFloat

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
        if len(self.ends) != len(self.values):
            raise ValueError(f"{len(self.ends)} ends and {len(self.values)} values: give one value for each end")
        ends = [int(x) if isinstance(x, Integral) and not isinstance(x, bool) else -1 for x in _listed(self.ends)]
        if any(a >= b for a, b in pairwise([-1, *ends])):
            raise ValueError(
                f"ends must be whole numbers from 0 on, each above the one before, got {[*self.ends]!r:.200}"
            )
        values = [x if x is None else as_number(x) for x in _listed(self.values)]
        if any(x is None and y is not None for x, y in zip(values, _listed(self.values), strict=True)):
            rule = "values must be finite numbers, or None where a step is not scored"
            raise ValueError(f"{rule}, got {[*self.values]!r:.200}")
        object.__setattr__(self, "ends", tuple(ends))
        object.__setattr__(self, "values", tuple(values))

    def total(self, *, of_states: bool) -> float | None:
        """The reward of the response: the sum, or of scores of states the last one; `None` if nothing was scored."""
        known = [x for x in self.values if x is not None]
        if not known:
            return None if self.values or of_states else 0.0
        return known[-1] if of_states else math.fsum(known)


# what a function gave a response: nothing, a number, steps, or a value per token (NaN: not scored)
Given = float | StepRewards | torch.Tensor | None


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
        self._found: dict[int, list[Given]] = {}

    def note(self, column: int, found: list[Given]) -> None:
        """Keeps what function number `column` returned, if it is more than numbers."""
        self._found.pop(column, None)
        if any(isinstance(x, (StepRewards, torch.Tensor)) for x in found):
            self._found[column] = found

    def keep_unchanged(self, rewards: torch.Tensor) -> None:
        """Gives a response whose reward is no longer the total of its steps that number alone; `rewards` (N,
        functions)."""
        for column, found in self._found.items():
            for i, number in enumerate(rewards[:, column].tolist()):
                reward, total = None if math.isnan(number) else number, self.total(found[i], i)
                same = reward is total if None in (reward, total) else math.isclose(reward, total, rel_tol=1e-6)
                found[i] = found[i] if same else reward

    def take(self) -> dict[int, list[Given]]:
        """What was kept, by the number of the function. Forgets it."""
        found, self._found = self._found, {}
        return found

    def total(self, given: Given, i: int) -> float | None:
        """The reward of response `i`, which TRL logs and sums."""
        if isinstance(given, StepRewards):
            return given.total(of_states=self.of_states)
        if isinstance(given, torch.Tensor):
            known = given[self.scored(given, i)]
            if not len(known):
                return None
            return known[-1].item() if self.of_states else known.sum().item()
        return given

    def scored(self, value_t: torch.Tensor, i: int) -> torch.Tensor:
        """Which tokens of response `i` have a value and were written by the policy: bool, shape (T,)."""
        known = ~value_t.isnan()
        return known if self.written is None else known & torch.tensor(self.written[i], dtype=torch.bool)


def read_given(reward: Any, *, tokens: int | None) -> Given:
    """What a function returned for one response of `tokens` tokens (`None`: unknown).

    Raises:
        ValueError: it is nothing that a function may return; the message says why, without the function's name.
    """
    if reward is None or isinstance(reward, StepRewards):
        return reward
    dimensions = getattr(reward, "ndim", None)
    is_array = isinstance(dimensions, int) and dimensions > 0 and getattr(reward, "shape", ()) != (1,) * dimensions
    if isinstance(reward, (list, tuple)) or is_array:
        values = _listed(reward)
        if all(isinstance(x, (list, tuple)) and len(x) == 2 for x in values):
            return StepRewards(*zip(*values, strict=True)) if values else StepRewards((), ())
        numbers = [math.nan if x is None else as_number(x) for x in values]
        if None in numbers:
            raise ValueError("a value that is not a finite number (None: not scored)")
        if len(numbers) != tokens:
            length = "unknown length" if tokens is None else f"{tokens} tokens"
            raise ValueError(f"{len(numbers)} values for a response of {length} (one per token of completion_ids)")
        return torch.tensor(numbers, dtype=torch.float64)
    if (number := as_number(reward)) is None:
        raise ValueError("no number")
    return number


def as_float(value: Any) -> float | None:
    """A number as `float`, also of NumPy and torch; `None` for anything else."""
    try:
        plain = value.item() if hasattr(value, "item") else value
        return float(plain) if isinstance(plain, SupportsFloat) else None
    except Exception:  # an object that looks like a number may raise anything
        return None


def as_number(value: Any) -> float | None:
    """A finite number as `float`; `None` for anything else."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _listed(values: Any) -> list:
    """A sequence or array as a list of plain values."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
