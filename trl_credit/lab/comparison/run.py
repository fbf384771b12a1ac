"""Trains a grid: tuning, then the runs of the verdict, and scores them."""

import sys
from collections.abc import Sequence

from .entries import number
from .grid import TUNING, Grid, Run
from .groups import Group, make_group
from .histories import History, read_history
from .processes import train_all
from .results import Results, make_results, tuned_rows
from .rows import Rows
from .scoring import scored_runs


def train_grid(
    grid: Grid, *, baseline: str, metric: str, primary: str, command: str, jobs: int | None
) -> tuple[Results | None, bool]:
    """Trains the runs of tuning if there is a sweep, then those of the verdict with the best value of each algorithm.

    Args:
        grid ([`Grid`]):
            Its runs that are finished are skipped.
        baseline, metric, primary, command (`str`):
            As for [`make_results`]. Values are chosen by the primary metric.
        jobs (`int` or `None`):
            Runs at a time; by default one for each GPU, else for each core.

    Returns:
        `tuple[Results | None, bool]`: the results, `None` if no run of the verdict is finished, and whether a run
        failed.

    Raises:
        ValueError: see [`Grid.write`] and [`Rows`].
        Interrupted: Ctrl-C or SIGTERM.
    """
    remarks: list[str] = []
    failed: list[str] = []
    tuned: list[Group] = []
    best: dict[str, str] = {}
    tuning = grid.tuning_runs()
    swept = grid.sweep and grid.sweep.name
    rows = Rows(tuning or grid.verdict_runs(), swept=swept)
    declared = grid.write(tuning or grid.verdict_runs(), primary=primary)
    if declared != primary:
        later = f"this report uses {primary}, chosen later"
        remarks.append(f"The primary metric was declared as {declared} before these runs; {later}.")
    if tuning:
        failed += train_all(tuning, rows=rows, jobs=jobs)
        tuned = [group for group in _groups(tuning, metric) if set(group.seeds) == set(grid.sweep.seeds)]
        scores = tuned_rows({"runs": scored_runs(tuned, phase=TUNING), "primary": primary})
        written = {number(value): value for value in grid.sweep.values}
        best = {row.label: written[row.best] for row in scores}
        if untuned := [entry.label for entry in grid.swept if entry.label not in best]:
            what = f"no value of {swept} has all its tuning runs finished"
            print(f"error: {what}: {', '.join(untuned)}", file=sys.stderr)
            return None, True
        print(f"best {swept}: {', '.join(f'{label} {value}' for label, value in best.items())}")
    runs = grid.verdict_runs(best)
    rows = Rows([*tuning, *runs], swept=swept)
    grid.write(runs, primary=primary)
    failed += train_all(runs, rows=rows, jobs=jobs)
    groups = _groups(runs, metric)
    if not groups:
        return None, True
    labels = {group.label for group in groups}
    if missing := [entry.label for entry in grid.entries if entry.label not in labels]:
        remarks.append(f"No finished run of {', '.join(missing)}.")
    names = {"metric": metric, "command": command, "primary": primary, "sweep": swept}
    remarks += rows.remarks + failed
    results = make_results(groups, baseline, left_out=grid.left_out, remarks=remarks, tuned=tuned, **names)
    return results, bool(failed)


def _groups(runs: Sequence[Run], metric: str) -> list[Group]:
    """The finished runs, a group for each algorithm and swept value."""
    histories: dict[tuple[str, float | str | None], list[History]] = {}
    for run in runs:
        if run.is_finished:
            history = read_history(run.output_dir, metric=metric)
            histories.setdefault((run.entry.label, run.value), []).append(history)
    return [make_group(label, group, value) for (label, value), group in histories.items()]
