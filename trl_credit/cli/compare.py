"""`trl-credit compare`: algorithms × seeds, trained now or before, as curves, intervals and a report."""

import shlex
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ..settings.parser import OneLineParser
from ..support.errors import check_output_dir, choose, disk_full, fail, spelling
from ..support.startup import quiet_start


if TYPE_CHECKING:
    from ..lab.comparison.groups import Group
    from ..lab.comparison.processes import Progress

PROGRAM = "trl-credit compare"
_HELP = """\
Is the difference real? Trains algorithms × seeds, or takes finished runs, and writes a report with curves, intervals
and the probability of improvement over a baseline.

  trl-credit compare --algo grpo s_trace spo_chain --seeds 0 1 2 3 4
  trl-credit compare --algo grpo s_trace "random=s_trace --selector random" --max_steps 100
  trl-credit compare --algo grpo --credit mine.py:first_half --config my_task.yaml
  trl-credit compare --runs runs/a runs/b runs/c --output_dir comparison

All other flags are those of `trl-credit train`, for all runs. Without a model, the embedded task is trained. A setting
that an algorithm does not have is left out for it, and printed. The same command resumes unfinished runs.
"""


def main(argv: list[str]) -> int:
    """Returns the exit code: 0, 1 if a run failed, 2 for invalid input, 130 after Ctrl-C and 143 after SIGTERM."""
    quiet_start()
    try:
        args, flags = _parse(argv)
        folder = Path(args.output_dir)
        check_output_dir(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / ".compare.lock", timeout=0):
                return _compare_finished(args) if args.runs else _train_grid(args, flags)
        except Timeout:
            raise ValueError(f"another comparison is running in {folder}: choose another --output_dir") from None
    except (ValueError, OSError, ImportError) as error:
        fail(error, code=1 if disk_full(error) else 2)
    except KeyboardInterrupt:  # before the first run, or during the report
        print("\ninterrupted: the same command resumes", file=sys.stderr)
        return 128 + signal.SIGINT


def _parse(argv: list[str]) -> tuple[Namespace, list[str]]:
    parser = OneLineParser(prog=PROGRAM, description=_HELP)
    add = parser.add_argument
    add("--algo", nargs="+", action="extend", metavar="ALGO", help='algorithms, or "NAME=ALGO --flag value …"')
    add("--credit", nargs="+", action="extend", metavar="FILE.py:FUNCTION", help="custom functions, or NAME=…")
    add("--seeds", nargs="+", type=int, help="seeds of each algorithm (default: 0 1 2 3 4)")
    add("--config", nargs="+", action="extend", metavar="FILE", help="YAML files of settings, or recipes by name")
    add("--runs", nargs="+", action="extend", metavar="FOLDER", help="finished runs, instead of training")
    add("--baseline", metavar="ALGO", help="default: grpo, else the first")
    add("--metric", default="reward", help="any logged number, such as eval_math500/avg@4 (default: reward)")
    add("--jobs", type=int, help="runs at a time (default: one for each GPU, else for each core)")
    add("--output_dir", default="comparison", metavar="FOLDER", help="default: comparison")
    args, flags = parser.parse_known_args(argv)
    args.command = shlex.join([*PROGRAM.split(), *argv])
    if args.runs:
        given = [f"--{n}" for n in ("algo", "credit", "seeds", "config", "jobs") if getattr(args, n) is not None]
        if given or flags:
            raise ValueError(f"--runs trains nothing: leave out {[*given, *flags][0]}")
    elif not args.algo and not args.credit:
        raise ValueError("there is nothing to compare: name algorithms with --algo, or finished runs with --runs")
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    if flags and not flags[0].startswith("--"):
        raise ValueError(f"{flags[0]!r} follows no flag: write --name before it, --help lists them")
    return args, flags


def _compare_finished(args: Namespace) -> int:
    from ..lab.comparison.groups import group_runs
    from ..lab.comparison.histories import read_history

    groups = group_runs([read_history(folder, metric=args.metric) for folder in args.runs])
    baseline = _baseline(args.baseline, {group.label: group.label for group in groups})
    _report(args, groups, baseline, {}, [])
    return 0


def _train_grid(args: Namespace, flags: list[str]) -> int:
    from ..lab.comparison.grid import make_grid, read_entries, write_grid
    from ..lab.comparison.groups import make_group
    from ..lab.comparison.histories import History, read_history
    from ..lab.comparison.live_table import ProgressTable
    from ..lab.comparison.processes import Interrupted, cores, devices, train_all

    folder, seeds = Path(args.output_dir), args.seeds if args.seeds is not None else [0, 1, 2, 3, 4]
    entries = read_entries(args.algo or [], args.credit or [])
    baseline = _baseline(args.baseline, {name: e.label for e in entries for name in (e.name, e.label)})
    grid = make_grid(entries, seeds, config=args.config or [], flags=flags, folder=folder)
    write_grid(grid, folder)
    for label, names in grid.left_out.items():
        print(f"{label} does not have {', '.join(names)}: left out")
    gpus = devices()
    table = ProgressTable(grid)
    progress: dict[str, Progress] = {}
    try:
        with table.live:
            progress = train_all(grid.runs, jobs=args.jobs or len(gpus) or cores(), gpus=gpus, show=table.show)
    except Interrupted as stop:
        done = sum(run.is_finished for run in grid.runs)
        cause = "Ctrl-C" if stop.number == signal.SIGINT else stop
        kept = f"{done} of {len(grid.runs)} runs are finished; go on with: {args.command}"
        print(f"\ninterrupted ({cause}): {kept}", file=sys.stderr)
        return 128 + stop.number
    failed = table.failures(progress)
    for sentence in failed:
        print(f"error: {sentence}", file=sys.stderr)
    finished: dict[str, list[History]] = {}
    for run in grid.runs:
        if run.is_finished:
            finished.setdefault(run.entry.label, []).append(read_history(run.folder, metric=args.metric))
    if not finished:
        return 1
    missing = [entry.label for entry in entries if entry.label not in finished]
    remarks = [*failed, *([f"No finished run of {', '.join(missing)}."] if missing else [])]
    groups = [make_group(label, runs) for label, runs in finished.items()]
    _report(args, groups, baseline, grid.left_out, remarks)
    return 1 if failed else 0


def _baseline(asked: str | None, labels: dict[str, str]) -> str:
    """The label of the baseline. `labels` maps every name of an algorithm to its label."""
    if asked is None:
        return labels.get("grpo") or labels.get("GRPO") or next(iter(labels.values()))
    by_spelling = {spelling(name): label for name, label in reversed(labels.items())}
    found = labels.get(asked) or by_spelling.get(spelling(asked))
    if found is None:
        known = dict.fromkeys(labels.values())
        raise ValueError(f"--baseline {asked!r} is not among the algorithms{choose(asked, known)}")
    return found


def _report(
    args: Namespace, groups: list["Group"], label: str, left_out: dict[str, list[str]], remarks: list[str]
) -> None:
    """Writes the report against the baseline of that label, or the first group if it has no finished run."""
    from ..lab.comparison.report import Comparison, write_report

    baseline = next((group for group in groups if group.label == label), groups[0])
    if baseline.label != label:
        remarks = [*remarks, f"{label} has no finished run: the baseline is {baseline.label}."]
    comparison = Comparison(tuple(groups), baseline, args.metric, args.command, left_out, tuple(remarks))
    for page in write_report(comparison, Path(args.output_dir)):
        print(page)
