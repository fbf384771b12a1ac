"""pass@k, best@k, avg@k, maj@k from n samples of a problem, and intervals over problems. No model needed."""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


_SPACING = re.compile(r"\s+|\\[!,;: ]|\\(?:left|right)(?![A-Za-z])|\$")
_CELLS = 4_000_000  # resampled scores that are in memory at once


class Interval(NamedTuple):
    """Of a mean score: its ends, and how they were found, "bootstrap" or "wilson"."""

    low: float
    high: float
    kind: str


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k): the chance that k of n samples, of which c are right, hold a right one.

    The unbiased estimator of Chen et al. (arXiv 2107.03374, Eq. 1), in integers, so rounded once at the end.

    Raises:
        ValueError: k is not in 1 … n, or c not in 0 … n.
    """
    _check(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"there cannot be {c} right samples of {n}")
    subsets = comb(n, k)
    return (subsets - comb(n - c, k)) / subsets


def best_at_k(n: int, c: int, k: int) -> float:
    """1 − (1 − c/n)^k: the chance that k draws with replacement from n samples hold a right one.

    What the bootstrap behind veRL's best@k tends to, without its noise. From n = k samples it is at most pass@k, and
    a set's mean need not be a multiple of one problem's share.

    Raises:
        ValueError: k is not in 1 … n, or c not in 0 … n.
    """
    return 1 - (1 - average_at_k(n, c, k)) ** k


def average_at_k(n: int, c: int, k: int) -> float:
    """c / n: the mean over all subsets of k samples of the share of right ones, whatever k is.

    Raises:
        ValueError: k is not in 1 … n, or c not in 0 … n.
    """
    _check(n, k)
    return pass_at_k(n, c, 1)


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """maj@k: the chance that the most frequent answer of k of the n samples is right.

    The exact mean over all C(n, k) subsets, by counting and without drawing any. Where m answers tie for the most
    votes, each wins with chance 1/m. Samples that are right are one class, however they write the answer; the others
    are classes by `normal_form`; wrong samples without an answer do not vote, and where nobody votes the score is 0.

    Args:
        answers (`Sequence[str | None]`):
            Extracted answers, `None` where there is none.
        correct (`Sequence[bool]`):
            Whether each is right.
        k (`int`):
            Voters.

    Raises:
        ValueError: k is not in 1 … n, or the lengths differ.
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"{n} answers and {len(correct)} verdicts: there must be one for each")
    _check(n, k)
    right = sum(map(bool, correct))
    voters = [a for a, is_right in zip(answers, correct, strict=True) if not is_right and a is not None]
    rivals = sorted(Counter(map(normal_form, voters)).values())
    silent = n - right - sum(rivals)
    if k == n:
        return _share(right, rivals)
    won = Fraction(0)
    for votes in range(1, min(right, k) + 1):
        ways = _ways(rivals, silent, others=k - votes, votes=votes)
        won += comb(right, votes) * sum((Fraction(w, ties + 1) for ties, w in ways.items()), Fraction(0))
    return float(won / comb(n, k))


def normal_form(answer: str) -> str:
    """An answer without what does not change its meaning: spaces, `$`, `\\left`, `\\right`, a full stop at the end.

    Equal normal forms vote together. It does no mathematics: 0.5 and 1/2 are two answers unless both are right.
    """
    return _SPACING.sub("", answer).removesuffix(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def bootstrap_interval(
    scores: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean score, over problems (the samples of a problem stay together).

    Where all scores are equal it is a point, since it never draws another: see [`mean_interval`].

    Args:
        scores (`Sequence[float]`):
            One score per problem.
        level (`float`, *optional*, defaults to 0.95):
            Coverage. With few problems the true one is lower: some 0.92 for 30.
        resamples (`int`, *optional*, defaults to 10,000):
            Sets of problems that are drawn with replacement.
        seed (`int`, *optional*, defaults to 0):
            The same scores give the same interval for the same seed.

    Raises:
        ValueError: no scores, a score that is not finite, or `level` outside (0, 1).
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"a bootstrap wants a list of finite scores, got {values.size} of shape {values.shape}")
    _check_level(level)
    if values.min() == values.max():
        return float(values[0]), float(values[0])
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // values.size)
    means = [
        values[rng.integers(values.size, size=(min(rows, resamples - begin), values.size))].mean(axis=1)
        for begin in range(0, resamples, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(share: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share among `n` problems. It is never a point: 0 of 24 is [0, 0.138].

    (p̂ + z²/2n ± z √(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n), z the quantile of the normal distribution (Wilson 1927).

    Raises:
        ValueError: `share` is not in [0, 1], `n` is not positive, or `level` is outside (0, 1).
    """
    if not 0 <= share <= 1 or n < 1:
        raise ValueError(f"an interval wants a share in [0, 1] of at least one problem, got {share} of {n}")
    _check_level(level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * n)
    width = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * width) / (1 + z * z / n) for sign in (-1, 1))
    # the ends belong to it, which rounding would leave out
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def mean_interval(scores: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The interval of the mean score over problems: by bootstrap, and Wilson's where all scores are equal.

    Takes the arguments of [`bootstrap_interval`]. Where no two problems differ a bootstrap says that the score is known
    exactly, after however few of them. Wilson's takes every problem as right or wrong as a whole, the largest variance
    that scores in [0, 1] can have.

    Raises:
        ValueError: as in `bootstrap_interval`, or equal scores outside [0, 1].
    """
    low, high = bootstrap_interval(scores, level=level, resamples=resamples, seed=seed)
    if min(scores) < max(scores):
        return Interval(low, high, "bootstrap")
    return Interval(*wilson_interval(float(scores[0]), len(scores), level=level), "wilson")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} samples of a problem, got {k}: raise --samples or lower k")


def _share(right: int, rivals: Sequence[int]) -> float:
    """The right answer's share of the win, given all votes."""
    if right == 0 or (rivals and max(rivals) > right):
        return 0.0
    return 1 / (1 + sum(votes == right for votes in rivals))


def _ways(rivals: Sequence[int], silent: int, *, others: int, votes: int) -> dict[int, int]:
    """In how many ways `others` samples can be chosen so that no rival gets more than `votes`, by rivals that tie."""
    table = {(s, 0): comb(silent, s) for s in range(min(silent, others) + 1)}
    for size in rivals:
        wider: dict[tuple[int, int], int] = {}
        for (chosen, ties), ways in table.items():
            for got in range(min(size, votes, others - chosen) + 1):
                key = (chosen + got, ties + (got == votes))
                wider[key] = wider.get(key, 0) + ways * comb(size, got)
        table = wider
    return {ties: ways for (chosen, ties), ways in table.items() if chosen == others}
