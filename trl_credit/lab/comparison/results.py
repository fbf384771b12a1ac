"""The content of `results.json`: the scores of all runs, and what is needed to make the report's tables from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .grid import TUNING
from .groups import Group
from .histories import History
from .same_gradient import has_same_gradient
from .scoring import scored_runs
from .settings_tables import settings_beside_credit


VERSION = 2


@dataclass(frozen=True)
class Comparison:
    """What a report is about.

    Attributes:
        groups: The runs of the verdict, at least one group, each with at least one run.
        baseline: One of them.
        metric: Name of the logged number.
        command: Command that makes the report.
        left_out: Shared settings that an algorithm does not have, by label.
        remarks: Sentences on what is missing, such as runs that failed.
        primary: "area" or "end", the score that the verdict is about.
        tuned: Runs of tuning, a group for each algorithm and value.
        sweep: Name of the setting that was tuned.
    """

    groups: tuple[Group, ...]
    baseline: Group
    metric: str
    command: str
    left_out: dict[str, list[str]]
    remarks: tuple[str, ...] = ()
    primary: str = "area"
    tuned: tuple[Group, ...] = ()
    sweep: str | None = None

    @property
    def runs(self) -> list[tuple[Group, History]]:
        """Every run of the verdict with its group."""
        return [(group, run) for group in self.groups for run in group.runs]


def make_results(comparison: Comparison) -> dict[str, Any]:
    """The content of `results.json`.

    * `version`, `command`, `metric`, `primary`, `baseline`, `remarks`, `left_out`: see [`Comparison`].
    * `same_gradient`: labels of the algorithms that have the baseline's gradient.
    * `sweep`: the setting that was tuned, or `None`.
    * `settings`: label → setting → value, for the settings beside the credit in which the algorithms differ.
    * `runs`: label, swept value, phase, seed, the score by each of `SCORES`, and totals of each run. A score or a total
      that the log does not tell is `None`.
    """
    groups, baseline = comparison.groups, comparison.baseline
    return {
        "version": VERSION,
        "command": comparison.command,
        "metric": comparison.metric,
        "primary": comparison.primary,
        "baseline": baseline.label,
        "same_gradient": _same_gradient(groups, baseline, comparison.sweep),
        "remarks": list(comparison.remarks),
        "left_out": comparison.left_out,
        "sweep": comparison.sweep,
        "settings": settings_beside_credit(groups),
        "runs": tuning_runs(comparison.tuned) + scored_runs(groups),
    }


def tuning_runs(tuned: Sequence[Group]) -> list[dict[str, Any]]:
    """The entries of "runs" for the tuning, scored up to the step that all of these runs have."""
    return scored_runs(tuned, phase=TUNING) if tuned else []


def _same_gradient(groups: Sequence[Group], baseline: Group, sweep: str | None) -> list[str]:
    base = baseline.runs[0].identity
    others = [group for group in groups if group is not baseline]
    return [group.label for group in others if has_same_gradient(group.runs[0].identity, base, swept=sweep)]
