"""The results of a comparison: the content of `results.json`, and the rows that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .entries import in_order
from .grid import TUNING
from .groups import Group
from .same_gradient import has_same_gradient
from .scoring import SCORES, ScoreRow, compare_results, scored_runs
from .settings_tables import differing_settings


class TunedRow(NamedTuple):
    """The sweep of one algorithm.

    Attributes:
        label: The algorithm.
        scores: Mean of the primary metric over the tuning seeds by value, in the order of the values.
        best: The value with the highest mean, the first one of several.
        is_at_edge: Whether that is the lowest or the highest value of the sweep, so that a better one may lie beyond.
    """

    label: str
    scores: dict[float | str, float]
    best: float | str
    is_at_edge: bool


def tuned_rows(results: dict[str, Any]) -> list[TunedRow]:
    """The sweep of each algorithm, from the fields "runs" and "primary" of `results.json`.

    Numbers are ordered by size, texts as they come. Values without a finished run are left out.
    """
    scores: dict[str, dict[float | str, list[float]]] = {}
    for run in results["runs"]:
        if run["phase"] == TUNING:
            by_value = scores.setdefault(run["label"], {})
            by_value.setdefault(run["value"], []).append(run[results["primary"]])
    rows = []
    for label, by_value in scores.items():
        means = {value: float(np.mean(by_value[value])) for value in in_order(by_value)}
        best, values = max(means, key=means.__getitem__), list(means)
        rows.append(TunedRow(label, means, best, best in (values[0], values[-1])))
    return rows


@dataclass(frozen=True)
class Results:
    """The content of `results.json`, and its rows.

    Attributes:
        content: The content of the file:

            * `version`, `command`, `metric`, `primary`, `baseline`, `sweep`, `remarks`, `left_out`: see
              [`make_results`].
            * `same_gradient`: labels of the algorithms that have the baseline's gradient.
            * `settings`: label → setting → value, for the settings beside the credit in which the algorithms differ.
            * `runs`: label, swept value, phase, seed, the score by each of `SCORES`, and totals of each run. A score or
              a total that the log does not tell is `None`.

        groups: The runs of the verdict; empty for a file that was read.
    """

    content: dict[str, Any]
    groups: Sequence[Group] = ()

    @cached_property
    def rows(self) -> list[ScoreRow]:
        """The other algorithms against the baseline, by the primary metric."""
        return compare_results(self.content, self.content["primary"])

    @property
    def tested(self) -> list[ScoreRow]:
        """The rows of the algorithms that do not have the baseline's gradient."""
        return [row for row in self.rows if row.label not in self.content["same_gradient"]]

    @cached_property
    def tuned(self) -> list[TunedRow]:
        """The sweep of each algorithm."""
        return tuned_rows(self.content)

    def score(self, key: str | None = None) -> str:
        """A score in words, by default the primary one: "mean reward over the run"."""
        return SCORES[key or self.content["primary"]].format(metric=self.content["metric"])


def make_results(
    groups: Sequence[Group],
    baseline: str,
    *,
    metric: str,
    command: str,
    primary: str = "area",
    left_out: dict[str, list[str]] | None = None,
    remarks: Sequence[str] = (),
    tuned: Sequence[Group] = (),
    sweep: str | None = None,
) -> Results:
    """The scores of runs.

    Args:
        groups (list of [`Group`]):
            The runs of the verdict, at least one group, each with at least one run.
        baseline (`str`):
            Label of one of them. If it has no run, the first group is the baseline, and a remark says so.
        metric (`str`):
            Name of the logged number.
        command (`str`):
            Command that makes the report.
        primary (`str`, *optional*, defaults to `"area"`):
            "area" or "end", the score that the verdict is about.
        left_out (`dict`, *optional*):
            Shared settings that an algorithm does not have, by label.
        remarks (`list[str]`, *optional*):
            Sentences on what is missing, such as runs that failed.
        tuned (list of [`Group`], *optional*):
            Runs of tuning, a group for each algorithm and value.
        sweep (`str`, *optional*):
            Name of the setting that was tuned.
    """
    base = next((group for group in groups if group.label == baseline), groups[0])
    absent = [] if base.label == baseline else [f"{baseline} has no finished run: the baseline is {base.label}."]
    same = [g.label for g in groups if g is not base and has_same_gradient(g.runs[0], base.runs[0], swept=sweep)]
    content = {"version": 2, "command": command, "metric": metric, "primary": primary, "baseline": base.label}
    content |= {"same_gradient": same, "remarks": [*remarks, *absent], "left_out": left_out or {}, "sweep": sweep}
    content["settings"] = differing_settings(groups, of_credit=False)
    content["runs"] = scored_runs(tuned, phase=TUNING) + scored_runs(groups)
    return Results(content, groups)
