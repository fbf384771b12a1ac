"""Is the difference between two models on the same problems real? Interval, p-value, Holm's correction. NumPy alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .estimators import Interval, bootstrap_interval, wilson_interval


EXACT = 20  # problems that differ, up to which all patterns of signs are counted
_CELLS = 4_000_000  # signs that are in memory at once
_DIGITS = 12  # scores are ratios: what differs later is rounding


class Difference(NamedTuple):
    """The mean of second minus first score over problems, its interval, the p-value, and problems by sign."""

    value: float
    interval: Interval
    p: float
    better: int
    worse: int
    same: int


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    draws: int = 100_000,
    seed: int = 0,
) -> Difference:
    """Compares the scores of two models on the same problems, problem by problem.

    Args:
        first, second (`Sequence[float]`):
            One score in [0, 1] per problem, in the same order.
        level (`float`, *optional*, defaults to 0.95):
            Coverage of the interval.
        resamples, draws, seed (*optional*):
            For [`difference_interval`] and [`sign_flip_p`].

    Raises:
        ValueError: no problems, two lengths, or a score that is not in [0, 1].
    """
    a, b = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise ValueError(f"a paired difference wants one score per problem of each model, got {a.shape} and {b.shape}")
    if not all(((0 <= scores) & (scores <= 1)).all() for scores in (a, b)):
        raise ValueError("a paired difference wants scores in [0, 1]")
    differences = np.round(b - a, _DIGITS)
    return Difference(
        float(differences.mean()),
        difference_interval(differences, level=level, resamples=resamples, seed=seed),
        sign_flip_p(differences, draws=draws, seed=seed),
        int((differences > 0).sum()),
        int((differences < 0).sum()),
        int((differences == 0).sum()),
    )


def difference_interval(
    differences: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """The interval of a mean difference over problems: by bootstrap, and by Wilson's bound where all are equal.

    The bootstrap draws problems, each with all its samples. What a problem's samples vary by is part of how its
    difference varies, so that both sources of variance are in the interval; to draw samples as well would count one
    twice.

    Where all n problems differ by the same d (most often by nothing), a bootstrap would say that d is known exactly.
    The share of problems that differ otherwise was seen to be 0 of n, and is at most u, Wilson's upper end; their
    differences lie in [−1, 1], so the mean lies in [d − u (1 + d), d + u (1 − d)]. Kind "wilson".

    Raises:
        ValueError: as in [`bootstrap_interval`].
    """
    low, high = bootstrap_interval(differences, level=level, resamples=resamples, seed=seed)
    if min(differences) < max(differences):
        return Interval(low, high, "bootstrap")
    _, u = wilson_interval(0.0, len(differences), level=level)
    return Interval(low - u * (1 + low), high + u * (1 - high), "wilson")


def sign_flip_p(differences: Sequence[float], *, draws: int = 100_000, seed: int = 0) -> float:
    """The two-sided p-value of the mean difference by flipping the signs of whole problems.

    Were the models alike, each problem's difference would have had either sign with the same chance. p is the share of
    all patterns of signs whose mean is at least as far from 0 as the one seen. With up to 20 problems that differ all
    patterns are counted; else (1 + hits) / (1 + draws) of a random choice, with a fixed seed. From m problems that
    differ no p below 2^(1 − m) can come: one problem gives 1, and so does none.

    Raises:
        ValueError: a difference that is not finite, or fewer than 1 draw.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all() or draws < 1:
        raise ValueError(f"a sign-flip test wants finite differences and at least 1 draw, got {draws} draws")
    sizes = np.abs(values[values != 0])
    seen = abs(values.sum()) - 1e-9 * sizes.sum()  # sums in another order differ by rounding
    if sizes.size <= EXACT:
        sums = np.zeros(1)
        for size in sizes[1:]:  # one sign is fixed: the other half of the patterns mirrors this one
            sums = np.concatenate([sums + size, sums - size])
        return float((np.abs(sums + sizes[:1].sum()) >= seen).mean())
    rng, hits = np.random.default_rng(seed), 0
    rows = max(1, _CELLS // sizes.size)
    for begin in range(0, draws, rows):
        plus = rng.integers(2, size=(min(rows, draws - begin), sizes.size), dtype=np.int8)
        hits += int((np.abs(2 * (plus @ sizes) - sizes.sum()) >= seen).sum())
    return (1 + hits) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values for all hypotheses together, by Holm's step-down (1979): valid however they depend on each other.

    The i-th smallest of k is multiplied by k − i + 1, and none is smaller than one before it.
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted
