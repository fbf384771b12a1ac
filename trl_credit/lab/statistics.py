"""Intervals and tests: bootstrap and Wilson for scores of problems, t for scores of runs, sign flips, Holm."""

import warnings
from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np


LEVEL = 0.95
MAX_EXACT = 20  # problems that differ, up to which all sign patterns are enumerated
_CELLS = 4_000_000  # resampled scores or signs in memory at once
_DIGITS = 12  # scores are ratios: what differs later is rounding
Interval = tuple[float, float, str]  # its ends, and its kind: "bootstrap" or "wilson"


class Difference(NamedTuple):
    """Mean of second minus first score over problems, its interval with its kind, the p-value, and the number of
    problems by sign."""

    difference: float
    low: float
    high: float
    interval: str
    p: float
    better: int
    worse: int
    same: int


class TTest(NamedTuple):
    """A mean difference, its 95 % t interval, the two-sided p of the t test, and the number of differences (or runs).

    Without spread there is no t: `low`, `high` and `p` are then `None`, and so they are for fewer than two values.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    n: int


def paired_t(differences: Sequence[float]) -> TTest:
    """Student's t test of paired differences against 0, with n − 1 degrees of freedom."""
    from scipy import stats  # takes more than a second

    values = np.round(differences, _DIGITS)
    test = None if np.ptp(values) == 0 else stats.ttest_1samp(values, 0)
    return _t_test(float(values.mean()), test, values.size)


def welch_t(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Welch's t test of mean(second) − mean(first), for samples that cannot be paired. `n` is the smaller size."""
    from scipy import stats

    a, b = np.round(first, _DIGITS), np.round(second, _DIGITS)
    n, test = min(a.size, b.size), None
    if n > 1 and not np.ptp(a) == np.ptp(b) == 0:
        with warnings.catch_warnings(action="ignore"):  # a sample without spread is no loss of precision
            test = stats.ttest_ind(b, a, equal_var=False)
    return _t_test(float(b.mean() - a.mean()), test, n)


def _t_test(value: float, test: Any, n: int) -> TTest:
    if test is None:
        return TTest(value, None, None, None, n)
    low, high = test.confidence_interval(LEVEL)
    return TTest(value, float(low), float(high), float(test.pvalue), n)


def bootstrap_interval(scores: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of scores, a point if all are equal: see [`mean_interval`].

    Args:
        scores (`Sequence[float]`):
            Scores of problems, shape (problems,), which are drawn with replacement. With few of them the interval is
            too narrow: with 30 its coverage is about 0.92.
        resamples (`int`, *optional*, defaults to 10,000):
            Number of draws.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.
    """
    values = np.asarray(scores, dtype=np.float64)
    rng, rows = np.random.default_rng(seed), max(1, _CELLS // values.size)
    means = []
    for begin in range(0, resamples, rows):
        drawn = rng.integers(values.size, size=(min(rows, resamples - begin), values.size))
        means.append(values[drawn].mean(axis=1))
    return tuple(np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist())


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share among `n` problems. It is never a point: 0 of 24 is [0, 0.138].

    (p̂ + z²/2n ± z √(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n), z the quantile of the normal distribution (Wilson 1927).
    `share` need not be a multiple of 1/n, which scipy's intervals of a proportion require.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle = share + z * z / (2 * n)
    width = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * width) / (1 + z * z / n) for sign in (-1, 1))
    # rounding must not exclude an end that belongs to the interval
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def mean_interval(scores: Sequence[float], *, seed: int = 0) -> Interval:
    """95 % interval of a mean over problems of scores in [0, 1]: bootstrap, or Wilson's if all scores are equal.

    For equal scores a bootstrap claims that the score is known exactly, however few problems there are. Wilson's
    interval treats each problem as entirely right or wrong, which is the largest variance that scores in [0, 1] can
    have.
    """
    if min(scores) == max(scores):
        return (*wilson_interval(scores[0], len(scores)), "wilson")
    return (*bootstrap_interval(scores, seed=seed), "bootstrap")


def difference_interval(differences: Sequence[float], *, seed: int = 0) -> Interval:
    """95 % interval of a mean difference over problems: bootstrap, or Wilson's bound if all differences are equal.

    The bootstrap draws problems, each with all its samples. The variance of a problem's difference already contains the
    variance of its samples; drawing samples too would count that twice.

    If all n problems differ by the same d, a bootstrap claims that d is known exactly. The share of problems that
    differ otherwise was 0 of n and is at most u, Wilson's upper end. Their differences lie in [−1, 1], so the mean lies
    in [d − u (1 + d), d + u (1 − d)]. The kind is then "wilson".
    """
    d, u = float(differences[0]), wilson_interval(0.0, len(differences))[1]
    if min(differences) == max(differences):
        return (d - u * (1 + d), d + u * (1 - d), "wilson")
    return (*bootstrap_interval(differences, seed=seed), "bootstrap")


def paired_difference(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> Difference:
    """Compares the scores of two models on the same problems, problem by problem.

    Args:
        first, second (`Sequence[float]`):
            One score in [0, 1] per problem, in the same order.
        seed (`int`, *optional*, defaults to 0):
            Seed of [`difference_interval`] and [`sign_flip_p`].
    """
    differences = np.round(np.subtract(second, first), _DIGITS)
    interval, p = difference_interval(differences, seed=seed), sign_flip_p(differences, seed=seed)
    counts = [int((np.sign(differences) == sign).sum()) for sign in (1, -1, 0)]
    return Difference(float(differences.mean()), *interval, p, *counts)


def sign_flip_p(differences: Sequence[float], *, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean difference, by flipping the signs of whole problems.

    If the models are equal, either sign of a problem's difference is equally likely. p is the share of sign patterns
    whose mean is at least as far from 0 as the observed one. With up to 20 problems that differ, all patterns are
    enumerated; else p is (1 + hits) / (1 + draws) of random patterns with a fixed seed. m problems that differ give no
    p below 2^(1 − m); one problem gives 1, and so does none.
    """
    values = np.asarray(differences, dtype=np.float64)
    sizes = np.abs(values[values != 0])
    observed = abs(values.sum()) - 1e-9 * sizes.sum()  # sums in another order differ by rounding
    if sizes.size <= MAX_EXACT:
        sums = np.zeros(1)
        for size in sizes[1:]:  # the first sign is fixed: the other half of the patterns mirrors this one
            sums = np.concatenate([sums + size, sums - size])
        return float((np.abs(sums + sizes[:1].sum()) >= observed).mean())
    rng, hits = np.random.default_rng(seed), 0
    rows = max(1, _CELLS // sizes.size)
    for begin in range(0, draws, rows):
        plus = rng.integers(2, size=(min(rows, draws - begin), sizes.size), dtype=np.int8)
        hits += int((np.abs(2 * (plus @ sizes) - sizes.sum()) >= observed).sum())
    return (1 + hits) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for all hypotheses together by Holm's step-down (1979), valid under any dependence.

    The i-th smallest of k is multiplied by k − i + 1, and none is smaller than the one before it.
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.minimum(1.0, np.arange(len(order), 0, -1) * np.asarray(p_values, dtype=float)[order])
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted.tolist()
