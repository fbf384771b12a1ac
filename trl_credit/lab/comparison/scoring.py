"""Tables of a comparison: the scores of each group, their intervals, and which differences they show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..statistics import bootstrap_interval, false_alarm, interquartile_mean, overlap, probability_of_improvement
from .groups import Group, common_axes, mean_scores, reach, scores_at


RESAMPLES = 20_000
MIN_RUNS = 3  # fewer runs give no interval
# verdict of a row → sentence on the rows that have it; {baseline} is a label
_SENTENCES = {
    "higher": "above {baseline}, the intervals do not overlap",
    "lower": "below {baseline}, the intervals do not overlap",
    "no difference shown": "no difference from {baseline} shown, the intervals overlap",
    "equal runs: nothing to say": "no interval: all runs, or all of {baseline}, score the same",
    "too few runs to say": f"no difference shown: an interval needs {MIN_RUNS} runs of each",
}
_Interval = tuple[float, float]


class ScoreRow(NamedTuple):
    """The scores of one group.

    Attributes:
        label: The group's label.
        scores: Scores of its runs, ordered by seed.
        middle: Their interquartile mean.
        interval: Its 95 % interval; `None` for too few runs, or for runs that all score the same.
        improvement: Probability that a run is better than one of the baseline; `None` for the baseline.
        improvement_interval: Its 95 % interval; also `None` if all pairs of runs score the same.
        verdict: What the intervals show about the difference, in a few words.
    """

    label: str
    scores: tuple[float, ...]
    middle: float
    interval: _Interval | None
    improvement: float | None
    improvement_interval: _Interval | None
    verdict: str


@dataclass(frozen=True)
class ScoreTable:
    """One table.

    Attributes:
        key: "steps", "prompts", "generated" or "mean".
        title: Where the runs are compared.
        explanation: How a run's score is computed.
        rows: One for each group, in their order.
    """

    key: str
    title: str
    explanation: str
    rows: tuple[ScoreRow, ...]


def score_tables(groups: Sequence[Group], baseline: Group) -> list[ScoreTable]:
    """The tables: at equal optimizer steps, over all steps up to there, at equal prompts and generated tokens."""
    steps, axes = f"{reach(groups, 'steps'):,.0f} optimizer steps", common_axes(groups)
    tenth = "the mean over the last tenth of the way there"
    mean = "A run's score is the mean over all of its points up to there: learning sooner gives a higher score."
    tables = [
        ("steps", f"After {steps}", f"A run's score is {tenth}.", scores_at(groups, "steps")),
        ("mean", f"Over the first {steps}", mean, mean_scores(groups)),
    ]
    for axis, words in (("prompts", "prompts"), ("generated", "generated tokens")):
        if axis in axes:
            title = f"After {reach(groups, axis):,.0f} {words}"
            shortest = f"As many as the shortest run has. A score is {tenth}."
            tables.append((axis, title, shortest, scores_at(groups, axis)))
    return [
        ScoreTable(key, title, explanation, _rows(groups, baseline, scores))
        for key, title, explanation, scores in tables
    ]


def _rows(groups: Sequence[Group], baseline: Group, scores: Sequence[np.ndarray]) -> tuple[ScoreRow, ...]:
    base = scores[list(groups).index(baseline)]
    base_interval = _interval(interquartile_mean, base)
    rows = []
    for group, values in zip(groups, scores, strict=True):
        interval = _interval(interquartile_mean, values)
        own = tuple(values[:, 0].tolist()), float(interquartile_mean(values)), interval
        if group is baseline:
            rows.append(ScoreRow(group.label, *own, None, None, "baseline"))
            continue
        improvement = float(probability_of_improvement(values, base))
        improvement_interval = _interval(probability_of_improvement, values, base)
        verdict = _verdict(interval, base_interval, min(len(values), len(base)))
        rows.append(ScoreRow(group.label, *own, improvement, improvement_interval, verdict))
    return tuple(rows)


def _interval(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> _Interval | None:
    """Bootstrap interval of a statistic of one group, or of two.

    `None` for too few runs. Also if all runs, or all pairs of runs, score the same: a bootstrap then claims that the
    statistic is known exactly.
    """
    if min(map(len, scores)) < MIN_RUNS:
        return None
    low, high = bootstrap_interval(*scores, statistic=statistic, resamples=RESAMPLES)
    all_same = low == high if len(scores) > 1 else np.ptp(scores[0]) == 0
    return None if all_same else (low, high)


def _verdict(own: _Interval | None, base: _Interval | None, runs: int) -> str:
    if runs < MIN_RUNS:
        return "too few runs to say"
    if own is None or base is None:
        return "equal runs: nothing to say"
    if overlap(own, base):
        return "no difference shown"
    return "higher" if own[0] > base[1] else "lower"


def sentences(table: ScoreTable, groups: Sequence[Group], baseline: Group) -> list[str]:
    """What a table shows about differences, and how far that can be trusted."""
    found = []
    for verdict, text in _SENTENCES.items():
        if labels := [row.label for row in table.rows if row.verdict == verdict]:
            found.append(f"{', '.join(labels)}: {text.format(baseline=baseline.label)}.")
    fewest = min(len(group.runs) for group in groups)
    if fewest < MIN_RUNS:
        short = [f"{g.label} ({len(g.runs)})" for g in groups if len(g.runs) < MIN_RUNS]
        found.append(f"There are no intervals with fewer than {MIN_RUNS} runs: {', '.join(short)}.")
    elif len(groups) > 1:
        found.append(
            f"With {fewest} runs of each, the intervals of two equal algorithms do not overlap about "
            f"{100 * false_alarm(fewest):.0f} % of the time; here are {len(groups) - 1} comparisons, with no "
            "correction for their number."
        )
    return found
