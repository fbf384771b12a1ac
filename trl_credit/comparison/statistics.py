"""Aggregates over runs and what is known of them, after Agarwal et al. 2021 (arXiv 2108.13264). Needs NumPy alone.

Scores of one algorithm have the shape (…, runs, tasks). A task is a stratum: a bootstrap draws runs within each task.
rliable, the authors' package, brings SciPy, arch and seaborn for these few formulas.
"""

from collections.abc import Callable

import numpy as np


LEVEL = 0.95
RESAMPLES = 20_000
FEWEST_RUNS = 3  # below which no interval is given
# how often the intervals of two algorithms that do not differ fail to overlap, by runs of each; by simulation with
# normal scores, see tests/test_comparison_statistics.py
FALSE_ALARMS = {3: 0.10, 4: 0.03, 5: 0.02, 6: 0.01}

Interval = tuple[float, float]


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of what is left of all runs and tasks without the lowest and the highest ⌊n/4⌋ of them, shape (…).

    Of fewer than four it is their mean.
    """
    flat = np.sort(np.reshape(scores, (*np.shape(scores)[:-2], -1)), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def probability_of_improvement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """How likely a run of one algorithm is better than a run of another on a task, mean over tasks, shape (…).

    All pairs of runs count, equal ones by half: the Mann-Whitney statistic over the number of pairs.
    """
    x, y = np.asarray(scores)[..., :, None, :], np.asarray(baseline)[..., None, :, :]
    return ((x > y) + 0.5 * (x == y)).mean((-3, -2, -1))


def bootstrap_interval(
    statistic: Callable[..., np.ndarray],
    *groups: np.ndarray,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """The percentile interval of a statistic of the scores of one or several algorithms, by a stratified bootstrap.

    Args:
        statistic (`Callable`):
            Of arrays of the shape (resamples, runs, tasks), one for each group; returns the shape (resamples,).
        *groups (`np.ndarray`):
            Scores of the shape (runs, tasks).
        level (`float`, *optional*, defaults to 0.95):
            Nominal coverage. With few runs the true one is lower.
        resamples (`int`, *optional*, defaults to 20000):
            Draws.
        seed (`int`, *optional*, defaults to 0):
            Of the draws.

    Returns:
        `tuple[float, float]`, or `None` where a group has fewer than `FEWEST_RUNS` runs.

    Raises:
        ValueError: scores that are not finite, or not of the shape (runs, tasks).
    """
    for scores in groups:
        if np.ndim(scores) != 2 or not np.isfinite(scores).all():
            raise ValueError(f"scores must be finite and of the shape (runs, tasks), got {np.shape(scores)}")
    if min(len(scores) for scores in groups) < FEWEST_RUNS:
        return None
    rng = np.random.default_rng(seed)
    drawn = [np.take_along_axis(s[None], rng.integers(len(s), size=(resamples, *s.shape)), axis=1) for s in groups]
    low, high = np.quantile(statistic(*drawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def overlap(one: Interval, other: Interval) -> bool:
    """Whether two intervals have a point in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def false_alarm(runs: int) -> float:
    """How often, about, two algorithms that do not differ would be told apart with so many runs of each."""
    return FALSE_ALARMS[max(n for n in FALSE_ALARMS if n <= max(runs, FEWEST_RUNS))]
