"""How many problems, or samples of each problem, are needed to find a difference of a given size."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, comb
from statistics import NormalDist

import numpy as np


MAX_SAMPLES = 10_000  # beyond it, a few more problems are cheaper
# (z_(1−α/2) + z_power)² of the normal distribution, for a power of 0.8 at α = 0.05, two-sided
_FACTOR = (NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)) ** 2


class Spread:
    """Variance of the differences between two models in pass@k, between problems and within problems.

    The estimates are unbiased and need the verdicts on at least 2k samples of each problem. Let q be the probability
    that a sample is wrong. The share of k-subsets of n samples that are all wrong has the variance
    Σ_j w_j(n) q^(2k−j) − q^(2k), where w_j(n) is the probability that two k-subsets of n share j samples. Each power
    q^m is estimated by C(wrong, m) / C(n, m). The covariance of the two models has the same form. It matters because
    with one seed the j-th samples of both models are drawn from the same random numbers.

    Args:
        first, second (`Sequence[Sequence[bool]]`):
            Whether each sample is right, by problem.
        k (`int`):
            k of pass@k; 1 for avg@k.

    Raises:
        ValueError: fewer than 2k samples, two problems with different numbers of them, or fewer than 2 problems.
    """

    def __init__(self, first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]], k: int) -> None:
        wrong = [~np.asarray(verdicts, dtype=bool) for verdicts in (first, second)]
        self.k, self.samples = k, tuple(w.shape[1] if w.ndim == 2 else 0 for w in wrong)
        if min(self.samples) < 2 * k or len(wrong[0]) < 2:
            raise ValueError(f"pass@{k} needs {2 * k} samples of each of two problems to separate their variances")
        shared = min(self.samples)
        a, b = (w[:, :shared] for w in wrong)
        both = zip(*((x.sum(axis=1).tolist()) for x in (a & b, a & ~b, ~a & b)), strict=True)
        self._single = [np.mean([_powers(int(c), 0, 0, w.shape[1], k) for c in w.sum(axis=1)], axis=0) for w in wrong]
        self._shared = np.mean([_powers(*counts, shared, k) for counts in both], axis=0)
        scores = [np.array([comb(int(c), k) / comb(w.shape[1], k) for c in w.sum(axis=1)]) for w in wrong]
        self.total = float(np.var(scores[0] - scores[1], ddof=1))
        self.between = max(0.0, self.total - self.within(*self.samples))

    def within(self, first: int, second: int) -> float:
        """Variance of a problem's difference with these numbers of samples of each model, mean over problems."""
        single = sum(_covariance(p, n, self.k) for p, n in zip(self._single, (first, second), strict=True))
        return max(0.0, single - 2 * _covariance(self._shared, max(first, second), self.k))


def needed_problems(difference: float, variance: float) -> int | None:
    """(z_(1−α/2) + z_power)² · variance / difference², rounded up, at least 2. `None` for a difference of 0.

    By the normal distribution, two-sided, with power 0.8 at α = 0.05. `variance` is that of the problems' differences.
    """
    if difference == 0:
        return None
    return max(2, ceil(_FACTOR * variance / difference**2))


def needed_samples(difference: float, spread: Spread, problems: int) -> float | None:
    """The fewest samples n of each problem for which between + within(n) ≤ problems · difference² / (z + z)².

    Infinity above 10,000, for instance if the variance between problems alone is too large. `None` for a difference
    of 0.
    """
    if difference == 0:
        return None
    allowed = problems * difference**2 / _FACTOR - spread.between

    def enough(n: int) -> bool:
        return spread.within(n, n) <= allowed

    low, high = spread.k - 1, MAX_SAMPLES
    if not enough(high):
        return float("inf")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def needed(difference: float, differences: Sequence[float], spread: Spread | None) -> tuple[int | None, float | None]:
    """Problems, and samples of each problem, that find a difference with power 0.8 at α = 0.05.

    The problems are those needed with the present number of samples, and the samples those needed on the present
    problems. Without a `spread` the samples are `None`; with fewer than 2 problems both are.
    """
    if difference == 0 or len(differences) < 2:
        return None, None
    samples = None if spread is None else needed_samples(difference, spread, len(differences))
    return needed_problems(difference, float(np.var(differences, ddof=1))), samples


def _covariance(powers: np.ndarray, n: int, k: int) -> float:
    return float(_overlaps(n, k) @ powers - powers[0])


@lru_cache(maxsize=4096)
def _overlaps(n: int, k: int) -> np.ndarray:
    """w_j: probability that two k-subsets of n share j samples, for j = 0 … k."""
    return np.array([comb(k, j) * comb(n - k, k - j) / comb(n, k) for j in range(k + 1)])


@lru_cache(maxsize=65536)
def _powers(both: int, only_first: int, only_second: int, n: int, k: int) -> np.ndarray:
    """Unbiased estimates of r^j a^(k−j) b^(k−j) for j = 0 … k.

    a, b and r are the probabilities that a sample is wrong in the first model, in the second, and in both. Of n
    samples, `both` are wrong in both models, `only_first` and `only_second` in one. The estimate is the share of
    disjoint sets of j, k − j and k − j samples that are all wrong. If the other two counts are 0, it is the estimate
    for a single model, a^(2k−j).
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
