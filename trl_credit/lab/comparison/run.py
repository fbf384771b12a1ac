"""A comparison from its grid to its groups: tuning, then the runs of the verdict, with what failed."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from .entries import number
from .grid import Grid, Run
from .grid_file import write_grid
from .groups import Group, make_group
from .histories import History, read_history
from .live_table import ProgressTable
from .processes import cores, devices, train_all
from .results import tuning_runs
from .tuning import tuned_rows


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
        ValueError: see [`~trl_credit.lab.comparison.grid_file.write_grid`].
        Interrupted: Ctrl-C or SIGTERM.
    """
    found = Trained()
    tuning = grid.tuning_runs()
    declared = write_grid(grid, tuning or grid.verdict_runs(), primary=primary)
    if declared != primary:
        later = f"this report uses {primary}, chosen later"
        found.remarks.append(f"The primary metric was declared as {declared} before these runs; {later}.")
    best: dict[str, str] = {}
    if tuning:
        _train(grid, tuning, found, jobs=jobs)
        found.tuned = [g for g in _groups(tuning, metric) if set(g.seeds) == set(grid.sweep.seeds)]
        rows = tuned_rows({"runs": tuning_runs(found.tuned), "primary": primary})
        written = {number(value): value for value in grid.sweep.values}
        best = {row.label: written[row.best] for row in rows}
        untuned = [e.label for e in grid.entries if grid.sweeps(e) and e.label not in best]
        if untuned:
            found.failed.append(f"no value of {grid.sweep.name} has all its tuning runs finished: {', '.join(untuned)}")
            return found
        print(f"best {grid.sweep.name}: {', '.join(f'{label} {value}' for label, value in best.items())}")
    runs = grid.verdict_runs(best)
    write_grid(grid, runs, primary=primary)
    _train(grid, runs, found, jobs=jobs)
    found.groups = _groups(runs, metric)
    labels = {group.label for group in found.groups}
    if missing := [entry.label for entry in grid.entries if entry.label not in labels]:
        found.remarks.append(f"No finished run of {', '.join(missing)}.")
    found.remarks += found.failed
    return found


def _train(grid: Grid, runs: Sequence[Run], found: Trained, *, jobs: int | None) -> None:
    """Trains the unfinished runs; prints and notes those that fail."""
    gpus = devices()
    jobs = jobs or len(gpus) or cores()
    table = ProgressTable(runs, grid.steps, jobs=jobs)
    with table.live:
        progress = train_all(runs, jobs=jobs, gpus=gpus, show=table.show)
    failed = table.failures(progress)
    for sentence in failed:
        print(f"error: {sentence}", file=sys.stderr)
    found.failed += failed


def _groups(runs: Sequence[Run], metric: str) -> list[Group]:
    """The finished runs, a group for each algorithm and swept value."""
    histories: dict[tuple[str, float | str | None], list[History]] = {}
    for run in runs:
        if run.is_finished:
            history = read_history(run.folder, metric=metric)
            histories.setdefault((run.entry.label, run.value), []).append(history)
    return [make_group(label, found, value) for (label, value), found in histories.items()]
