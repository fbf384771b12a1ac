"""Trains a grid: tuning, then the runs of the verdict, with their progress and what failed."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from .entries import number
from .grid import TUNING, Grid, Run
from .groups import Group, make_group
from .histories import History, read_history
from .processes import train_all
from .results import tuned_rows
from .scoring import scored_runs


@dataclass
class Trained:
    """What a grid has trained.

    Attributes:
        groups: The finished runs of the verdict.
        tuned: The finished runs of tuning, a group for each algorithm and value.
        failed: A sentence for each run that failed.
        remarks: Sentences for the report.
    """

    groups: list[Group] = field(default_factory=list)
    tuned: list[Group] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def train_grid(grid: Grid, *, metric: str, primary: str, jobs: int | None) -> Trained:
    """Trains the runs of tuning if there is a sweep, then those of the verdict with the best value of each algorithm.

    Args:
        grid ([`Grid`]):
            Its runs that are finished are skipped.
        metric (`str`):
            Any logged number.
        primary (`str`):
            "area" or "end", by which values are chosen.
        jobs (`int` or `None`):
            Runs at a time; by default one for each GPU, else for each core.

    Raises:
        ValueError: see [`Grid.write`].
        Interrupted: Ctrl-C or SIGTERM.
    """
    trained = Trained()
    tuning = grid.tuning_runs()
    declared = grid.write(tuning or grid.verdict_runs(), primary=primary)
    if declared != primary:
        later = f"this report uses {primary}, chosen later"
        trained.remarks.append(f"The primary metric was declared as {declared} before these runs; {later}.")
    best: dict[str, str] = {}
    if tuning:
        trained.failed += train_all(tuning, jobs=jobs)
        trained.tuned = [group for group in _groups(tuning, metric) if set(group.seeds) == set(grid.sweep.seeds)]
        rows = tuned_rows({"runs": scored_runs(trained.tuned, phase=TUNING), "primary": primary})
        written = {number(value): value for value in grid.sweep.values}
        best = {row.label: written[row.best] for row in rows}
        if untuned := [entry.label for entry in grid.swept if entry.label not in best]:
            what = f"no value of {grid.sweep.name} has all its tuning runs finished"
            print(f"error: {what}: {', '.join(untuned)}", file=sys.stderr)
            return trained
        print(f"best {grid.sweep.name}: {', '.join(f'{label} {value}' for label, value in best.items())}")
    runs = grid.verdict_runs(best)
    grid.write(runs, primary=primary)
    trained.failed += train_all(runs, jobs=jobs)
    trained.groups = _groups(runs, metric)
    labels = {group.label for group in trained.groups}
    if missing := [entry.label for entry in grid.entries if entry.label not in labels]:
        trained.remarks.append(f"No finished run of {', '.join(missing)}.")
    trained.remarks += trained.failed
    return trained


def _groups(runs: Sequence[Run], metric: str) -> list[Group]:
    """The finished runs, a group for each algorithm and swept value."""
    histories: dict[tuple[str, float | str | None], list[History]] = {}
    for run in runs:
        if run.is_finished:
            history = read_history(run.output_dir, metric=metric)
            histories.setdefault((run.entry.label, run.value), []).append(history)
    return [make_group(label, group, value) for (label, value), group in histories.items()]
