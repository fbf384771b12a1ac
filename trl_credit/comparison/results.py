"""What a comparison finds: a table of scores, and what it says and does not say of differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .curves import Group, common_axes, mean_scores, reach, scores_at
from .statistics import (
    FEWEST_RUNS,
    Interval,
    bootstrap_interval,
    false_alarm,
    interquartile_mean,
    overlap,
    probability_of_improvement,
)


class Row(NamedTuple):
    """The scores of one group.

    Attributes:
        label: The group's.
        scores: Of its runs, by their seeds.
        middle: Their interquartile mean.
        interval: 95 %, of the interquartile mean; `None` with too few runs, or runs that all score the same.
        improvement: Probability that a run is better than one of the baseline; `None` for the baseline.
        improvement_interval: 95 %; `None` also where all pairs of runs come out the same.
        verdict: What that says of the two, a few words.
    """

    label: str
    scores: tuple[float, ...]
    middle: float
    interval: Interval | None
    improvement: float | None
    improvement_interval: Interval | None
    verdict: str


@dataclass(frozen=True)
class Scores:
    """One table.

    Attributes:
        title: Where the runs are compared.
        key: "steps", "prompts", "generated" or "mean".
        says: A sentence of how a run's score is made.
        rows: One for each group, in their order.
    """

    title: str
    key: str
    says: str
    rows: tuple[Row, ...]


def compare(groups: Sequence[Group], baseline: Group) -> list[Scores]:
    """The tables: at equal optimizer steps, over the whole way to there, at equal prompts and generated tokens."""
    axes = common_axes(groups)
    tenth = "the mean over the last tenth of the way there"
    places = [("steps", f"After {reach(groups, 'steps'):,.0f} optimizer steps", f"A run's score is {tenth}.")]
    places += [
        (axis, f"After {reach(groups, axis):,.0f} {words}", f"As many as the shortest run has. A score is {tenth}.")
        for axis, words in (("prompts", "prompts"), ("generated", "generated tokens"))
        if axis in axes
    ]
    tables = [_table(groups, baseline, key, title, says, scores_at(groups, key)) for key, title, says in places]
    says = "A run's score is the mean over all of its points to there: who learns sooner has more."
    title = f"Over the first {reach(groups, 'steps'):,.0f} optimizer steps"
    return [tables[0], _table(groups, baseline, "mean", title, says, mean_scores(groups)), *tables[1:]]


def _table(
    groups: Sequence[Group], baseline: Group, key: str, title: str, says: str, scores: Sequence[np.ndarray]
) -> Scores:
    own = scores[list(groups).index(baseline)]
    base = _interval(own)
    rows = []
    for group, values in zip(groups, scores, strict=True):
        interval = _interval(values)
        against = group is not baseline
        better = float(probability_of_improvement(values, own)) if against else None
        of_better = _improvement(values, own) if against else None
        verdict = _verdict(interval, base, min(len(values), len(own))) if against else "baseline"
        middle = float(interquartile_mean(values))
        rows.append(Row(group.label, tuple(values[:, 0].tolist()), middle, interval, better, of_better, verdict))
    return Scores(title, key, says, tuple(rows))


def _interval(scores: np.ndarray) -> Interval | None:
    """Of the interquartile mean; none where no two runs differ, of which a bootstrap says that all is known."""
    return bootstrap_interval(interquartile_mean, scores) if len(np.unique(scores)) > 1 else None


def _improvement(scores: np.ndarray, baseline: np.ndarray) -> Interval | None:
    """Of the probability of improvement; none where all pairs come out the same."""
    found = bootstrap_interval(probability_of_improvement, scores, baseline)
    return None if found is None or found[0] == found[1] else found


def _verdict(own: Interval | None, base: Interval | None, runs: int) -> str:
    if runs < FEWEST_RUNS:
        return "too few runs to say"
    if own is None or base is None:
        return "equal runs: nothing to say"
    if overlap(own, base):
        return "no difference shown"
    return "higher" if own[0] > base[1] else "lower"


def sentences(table: Scores, groups: Sequence[Group], baseline: Group) -> list[str]:
    """What a table says of differences, and how far that can be trusted."""
    fewest = min(len(group.runs) for group in groups)
    others = [row for row in table.rows if row.verdict != "baseline"]
    said = []
    for verdict, text in (
        ("higher", f"above {baseline.label}, the intervals do not overlap"),
        ("lower", f"below {baseline.label}, the intervals do not overlap"),
        ("no difference shown", f"no difference from {baseline.label} shown, the intervals overlap"),
        ("equal runs: nothing to say", f"nothing to say: all runs, or all of {baseline.label}, score the same"),
        ("too few runs to say", f"no difference shown: an interval wants {FEWEST_RUNS} runs of each"),
    ):
        if names := [row.label for row in others if row.verdict == verdict]:
            said.append(f"{', '.join(names)}: {text}.")
    if fewest < FEWEST_RUNS:
        short = [f"{g.label} ({len(g.runs)})" for g in groups if len(g.runs) < FEWEST_RUNS]
        said.append(f"There are no intervals with fewer than {FEWEST_RUNS} runs: {', '.join(short)}.")
    elif others:
        rate = false_alarm(fewest)
        said.append(
            f"With {fewest} runs of each, two algorithms that do not differ are told apart about {100 * rate:.0f} % of "
            f"the time; here are {len(others)} comparisons, with no correction for their number."
        )
    return said
