"""HA-DW: a running belief about the policy's accuracy, and the weights that it gives to hard and easy prompts."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from .advantages import by_group


_STATE_VERSION = 2
# share of the width of the range: a float32 sum or mean of rewards may end a rounding error outside
_RANGE_TOLERANCE = 1e-6


@dataclass
class DifficultyBelief:
    """C⁺ = (1 − η_t) C⁻ + η_t y,  η_t = clip(η σ_t, η_min, 1): the difficulty anchor of HA-DW (arXiv 2601.08521, §3.1).

    y is the accuracy of one generation batch over all ranks, C⁻ the belief before that batch, and σ_t the population
    standard deviation of the last `window` beliefs, including C⁻. All are accuracies in [0, 1], kept as Python floats:
    ranks that receive the same accuracies hold the same belief to the last bit.

    The paper gives neither η nor m, η_min or a start: the four are ours, from the simulation in
    `docs/algorithms/ha_dw.md`.

    * `"history"`: the equation above. For the first `window` batches, which give too few beliefs for σ_t, C is the mean
      of the accuracies so far.
    * `"hard"`: always the mean of the last `window` accuracies (the paper's "hard update", Eq. 134). With
      `includes_current`, as in the released code, the mean for a batch includes its own accuracy.
    * `"fixed"`: always `threshold` (the paper's Table 2 tries 0.4, 0.5, 0.6).

    For each batch call `prior` and then `update`, once each. Skip
    both for a batch in which no response is scored.

    Args:
        mode (`str`, *optional*, defaults to `"history"`):
            `"history"`, `"hard"` or `"fixed"`.
        window (`int`, *optional*, defaults to `10`):
            m, the number of past batches that count.
        rate (`float`, *optional*, defaults to `6.0`):
            η > 0.
        rate_min (`float`, *optional*, defaults to `0.02`):
            η_min in [0, 1]. With 0, beliefs that agree once (σ_t = 0) never move again.
        threshold (`float`, *optional*, defaults to `0.5`):
            The belief in `"fixed"` mode, in [0, 1].
        includes_current (`bool`, *optional*, defaults to `False`):
            Whether a batch in `"hard"` mode is compared with C⁺ instead of C⁻.
    """

    mode: str = "history"
    window: int = 10
    rate: float = 6.0
    rate_min: float = 0.02
    threshold: float = 0.5
    includes_current: bool = False

    def __post_init__(self) -> None:
        self._accuracies: deque[float] = deque(maxlen=self.window)
        self._beliefs: deque[float] = deque(maxlen=self.window)

    @property
    def belief(self) -> float | None:
        """C⁻, the belief before the next batch; `None` before the first batch, except in `"fixed"` mode."""
        if self.mode == "fixed":
            return self.threshold
        return self._beliefs[-1] if self._beliefs else None

    def prior(self, accuracy: float) -> float:
        """What a batch of this accuracy is compared with: C⁻, or C⁺ with `includes_current`. The first batch has no
        past and gets its own accuracy y."""
        if self.includes_current:
            last = [*self._accuracies, accuracy][-self.window :]
            return math.fsum(last) / len(last)
        return accuracy if self.belief is None else self.belief

    def update(self, accuracy: float) -> tuple[float, bool] | None:
        """C⁻ ← C⁺ after a generation batch of this accuracy. Call it once per generation batch, on every rank.

        Returns:
            `tuple[float, bool]` or `None`: η_t, as a share of the distance, and whether η_min replaced η σ_t. `None` if
            C is a mean or fixed.
        """
        if self.mode == "fixed":
            return None
        is_full = len(self._accuracies) == self.window
        self._accuracies.append(accuracy)
        if self.mode == "hard" or not is_full:
            self._beliefs.append(math.fsum(self._accuracies) / len(self._accuracies))
            return None
        belief, mean = self._beliefs[-1], math.fsum(self._beliefs) / self.window
        own_rate = self.rate * math.sqrt(math.fsum((x - mean) ** 2 for x in self._beliefs) / self.window)
        rate_t = min(max(own_rate, self.rate_min), 1.0)
        # in this form equal C⁻ and y stay equal, and rounding cannot take C out of [0, 1]
        self._beliefs.append(belief + rate_t * (accuracy - belief))
        return rate_t, own_rate < self.rate_min

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on, as JSON types; JSON keeps floats exactly."""
        settings = {"version": _STATE_VERSION, "mode": self.mode, "window": self.window}
        return settings | {"accuracies": list(self._accuracies), "beliefs": list(self._beliefs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned. A refused state changes nothing.

        η and η_min stay those of this belief: they are for the next steps.

        Raises:
            ValueError: the state has another version, mode or window.
        """
        expected = self.state_dict()
        for name in ("version", "mode", "window"):  # an average over one window cannot become one over another
            if state[name] != expected[name]:
                what = f"the difficulty belief was saved with {name}={state[name]!r}"
                raise ValueError(f"{what}, not {expected[name]!r}")
        self._accuracies = deque(state["accuracies"], maxlen=self.window)
        self._beliefs = deque(state["beliefs"], maxlen=self.window)


def group_accuracy(rewards: torch.Tensor, *, num_generations: int, reward_range: tuple[float, float]) -> torch.Tensor:
    """p̂ = mean of (r_i − lo) / (hi − lo) over the group of `num_generations` consecutive responses.

    It estimates the probability that the policy solves the prompt (HA-DW, arXiv 2601.08521, §2.1). A NaN reward (a
    response that could not be scored) does not count in the mean.

    Args:
        rewards (`torch.Tensor`):
            Shape (N,), groups consecutive.
        num_generations (`int`):
            Responses per prompt, G.
        reward_range (`tuple[float, float]`):
            (lo, hi): the rewards of a completely wrong and of a completely right response.

    Returns:
        `torch.Tensor`: shape (N/G,), in [0, 1], at least float32; NaN for a group without a scored response.
        `.repeat_interleave(num_generations)` gives one value per response.

    Raises:
        ValueError: a reward is outside the range, see [`to_unit_interval`].
    """
    return to_unit_interval(by_group(rewards, num_generations), reward_range).nanmean(-1)


def batch_accuracy(rewards: torch.Tensor, *, reward_range: tuple[float, float]) -> float:
    """y = mean of (r_i − lo) / (hi − lo) over the scored responses of a batch (HA-DW, arXiv 2601.08521, §3.1).

    Every response counts once, whatever the number of NaN rewards in its group. The sum is exactly rounded: ranks with
    the same rewards get the same result, whatever their order or device. Gather the rewards of all ranks first.

    Args:
        rewards (`torch.Tensor`):
            Shape (N,), of the whole generation batch. NaN: not scored.
        reward_range (`tuple[float, float]`):
            (lo, hi), as in [`group_accuracy`].

    Returns:
        `float`: in [0, 1]; NaN if no response was scored.

    Raises:
        ValueError: a reward is outside the range, see [`to_unit_interval`].
    """
    unit = to_unit_interval(rewards, reward_range).flatten().tolist()
    scored = [value for value in unit if not math.isnan(value)]
    return math.fsum(scored) / len(scored) if scored else math.nan


def difficulty_weight(advantages: torch.Tensor, *, p_hat: torch.Tensor, prior: float, scale: float) -> torch.Tensor:
    """Φ = λ_scale · exp(D·|p̂ − C⁻|),  D = −sgn(A)·sgn(p̂ − C⁻): the factor on A of HA-DW (arXiv 2601.08521, §3.2).

    On a prompt harder than the belief (p̂ < C⁻) a right response gains weight and a wrong one loses weight; on an easier
    prompt it is the reverse. A = 0 or p̂ = C⁻ gives λ_scale.

    Args:
        advantages (`torch.Tensor`):
            A, shape (N,), one per response.
        p_hat (`torch.Tensor`):
            p̂ of the response's group, repeated to shape (N,). NaN (a group without a scored response) gives Φ = 1.
        prior (`float`):
            C⁻ in [0, 1].
        scale (`float`):
            λ_scale > 0 (1.3 in the paper's Table 7, where 1.5 scores 0.1 less; 1.5 in the released code).

    Returns:
        `torch.Tensor`: Φ, shape (N,), the type of `advantages`, in [λ_scale/e, λ_scale·e].
    """
    # sgn(x)·|x| = x, so that D·|diff| needs no sign of diff
    phi = scale * torch.exp(-torch.sign(advantages) * (p_hat - prior))
    return torch.where(p_hat.isnan(), 1.0, phi).to(advantages.dtype)


def to_unit_interval(rewards: torch.Tensor, reward_range: tuple[float, float]) -> torch.Tensor:
    """(r − lo) / (hi − lo), any shape, at least float32; NaN stays NaN.

    Raises:
        ValueError: a reward is outside of (lo, hi) by more than 1e-6 of its width.
    """
    low, high = reward_range
    # a mean in bfloat16 has two digits
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    unit = (rewards - low) / (high - low)
    outside = (unit < -_RANGE_TOLERANCE) | (unit > 1.0 + _RANGE_TOLERANCE)
    if outside.any():
        what = f"reward {rewards[outside][0].item()} is outside reward_range={tuple(reward_range)}"
        raise ValueError(f"{what}: set reward_range=(lo, hi) to the smallest and the largest sum of its rewards")
    return unit.clamp(0.0, 1.0)
