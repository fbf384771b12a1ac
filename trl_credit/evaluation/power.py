"""How many problems, or samples of each, it would take to find a difference of a given size."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, comb
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


MOST_SAMPLES = 10_000  # where more would do, so would a few more problems


class Needed(NamedTuple):
    """What finds a difference with the power asked for.

    `problems`: with as many samples of each as there are. `samples`: of each problem, on as many problems as there are;
    infinity where 10,000 are not enough, since the problems differ too much from each other. `None`: not to be said.
    """

    problems: int | None
    samples: float | None


class Spread:
    """Of the differences between two models in pass@k: how they vary with the problems, and how with the samples.

    Unbiased, from the verdicts on at least 2k samples of each problem. With q the chance that a sample is wrong, the
    share of k-subsets of wrong ones among n samples has the variance Σ_j w_j(n) q^(2k−j) − q^(2k), where w_j(n) is the
    chance that two k-subsets of n share j samples; each power q^m is estimated by C(wrong, m) / C(n, m). The covariance
    of the two models has the same form. It matters, since with one seed the j-th samples of both are drawn from the
    same random numbers.

    Args:
        first, second (`Sequence[Sequence[bool]]`):
            For each problem whether each sample is right.
        k (`int`):
            Of pass@k; 1 for avg@k.

    Raises:
        ValueError: fewer than 2k samples, two problems with different numbers of them, or fewer than 2 problems.
    """

    def __init__(self, first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]], k: int) -> None:
        wrong = [~np.asarray(verdicts, dtype=bool) for verdicts in (first, second)]
        self.k, self.samples = k, tuple(w.shape[1] if w.ndim == 2 else 0 for w in wrong)
        if min(self.samples) < 2 * k or len(wrong[0]) < 2:
            raise ValueError(f"pass@{k} wants {2 * k} samples of each of two problems to tell their variances apart")
        shared = min(self.samples)
        a, b = (w[:, :shared] for w in wrong)
        both = zip(*((x.sum(axis=1).tolist()) for x in (a & b, a & ~b, ~a & b)), strict=True)
        self._own = [np.mean([_powers(int(c), 0, 0, w.shape[1], k) for c in w.sum(axis=1)], axis=0) for w in wrong]
        self._shared = np.mean([_powers(*counts, shared, k) for counts in both], axis=0)
        scores = [np.array([comb(int(c), k) / comb(w.shape[1], k) for c in w.sum(axis=1)]) for w in wrong]
        self.total = float(np.var(scores[0] - scores[1], ddof=1))
        self.between = max(0.0, self.total - self.within(*self.samples))

    def within(self, first: int, second: int) -> float:
        """The variance of a problem's difference over so many samples of each model; the mean over problems."""
        own = sum(_covariance(p, n, self.k) for p, n in zip(self._own, (first, second), strict=True))
        return max(0.0, own - 2 * _covariance(self._shared, max(first, second), self.k))


def needed_problems(difference: float, variance: float, *, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """(z_(1−α/2) + z_power)² · variance / difference², rounded up; at least 2. `None` for a difference of 0.

    By the normal distribution, two-sided. `variance` is that of the differences of problems.
    """
    if difference == 0:
        return None
    return max(2, ceil(_factor(power, alpha) * variance / difference**2))


def needed_samples(
    difference: float, spread: Spread, problems: int, *, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """The fewest samples n of each problem for which between + within(n) ≤ problems · difference² / (z + z)².

    Infinity above 10,000, as where the variance between problems alone is too much; `None` for a difference of 0.
    """
    if difference == 0:
        return None
    allowed = problems * difference**2 / _factor(power, alpha) - spread.between

    def enough(n: int) -> bool:
        return spread.within(n, n) <= allowed

    low, high = spread.k - 1, MOST_SAMPLES
    if not enough(high):
        return float("inf")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def needed(
    difference: float,
    differences: Sequence[float],
    spread: Spread | None,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
) -> Needed:
    """Problems and samples for a difference; without a `spread` problems alone, and nothing for fewer than 2."""
    if difference == 0 or len(differences) < 2:
        return Needed(None, None)
    variance = float(np.var(differences, ddof=1))
    samples = None if spread is None else needed_samples(difference, spread, len(differences), power=power, alpha=alpha)
    return Needed(needed_problems(difference, variance, power=power, alpha=alpha), samples)


def _factor(power: float, alpha: float) -> float:
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) ** 2


def _covariance(powers: np.ndarray, n: int, k: int) -> float:
    return float(_overlaps(n, k) @ powers - powers[0])


@lru_cache(maxsize=4096)
def _overlaps(n: int, k: int) -> np.ndarray:
    """w_j: the chance that two k-subsets of n share j, for j = 0 … k."""
    return np.array([comb(k, j) * comb(n - k, k - j) / comb(n, k) for j in range(k + 1)])


@lru_cache(maxsize=65536)
def _powers(both: int, only_first: int, only_second: int, n: int, k: int) -> np.ndarray:
    """Unbiased estimates of r^j a^(k−j) b^(k−j) for j = 0 … k.

    a, b, r: the chances that a sample of the first model, of the second, and those of both are wrong, which happened
    with so many of n. It is the share of disjoint sets of j, k − j and k − j samples that are all wrong. With nothing
    but `both` it is that of a single model, a^(2k−j).
    """
    found = []
    for j in range(k + 1):
        rest = k - j
        ways = comb(both, j) * sum(
            comb(both - j, t) * comb(only_first, rest - t) * comb(both - j - t + only_second, rest)
            for t in range(min(rest, both - j) + 1)
        )
        found.append(ways / (comb(n, j) * comb(n - j, rest) * comb(n - k, rest)))
    return np.array(found)
