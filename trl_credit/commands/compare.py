"""`trl-credit compare`: algorithms × seeds, trained here or before, as curves, intervals and a report."""

import shlex
import signal
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ..mistakes import OneLineParser, check_output_dir, choose, disk_full, fail
from ..startup import quiet_start


if TYPE_CHECKING:
    from ..comparison.curves import Group
    from ..comparison.grid import Grid
    from ..comparison.running import Progress

PROGRAM = "trl-credit compare"
_HELP = """\
Is the difference real? Trains algorithms × seeds, or takes finished runs, and writes a report with curves, intervals
and the probability of improvement over a baseline.

  trl-credit compare --algo grpo s_trace spo_chain --seeds 0 1 2 3 4
  trl-credit compare --algo grpo s_trace "random=s_trace --selector random" --max_steps 100
  trl-credit compare --algo grpo --credit mine.py:first_half --config my_task.yaml
  trl-credit compare --runs runs/a runs/b runs/c --output_dir comparison

All other flags are those of `trl-credit train`, for all runs; without a model it is the embedded task. A setting that
an algorithm does not have is left out for it, and said. The same command goes on with what is not finished.
"""


def main(argv: list[str]) -> int:
    """The exit code: 0, 1 where a run failed, 2 for a mistake, 130 after Ctrl-C and 143 after SIGTERM."""
    quiet_start()
    command = shlex.join([*PROGRAM.split(), *argv])
    try:
        args, flags = _parsed(argv)
        folder = Path(args.output_dir)
        check_output_dir(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / ".compare.lock", timeout=0):
                return _finished(args, command) if args.runs else _grid(args, flags, command)
        except Timeout:
            raise ValueError(f"another comparison is at work in {folder}: choose another --output_dir") from None
    except (ValueError, OSError, ImportError) as error:
        fail(error, code=1 if disk_full(error) else 2)
    except KeyboardInterrupt:  # before the first run, or at the report
        print("\ninterrupted: the same command goes on", file=sys.stderr)
        return 128 + signal.SIGINT


def _parsed(argv: list[str]) -> tuple[Namespace, list[str]]:
    parser = OneLineParser(prog=PROGRAM, description=_HELP, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--algo", nargs="+", action="extend", metavar="ALGO", help='algorithms, or "NAME=ALGO --flag value …"')
    add("--credit", nargs="+", action="extend", metavar="FILE.py:FUNCTION", help="functions of yours, or NAME=…")
    add("--seeds", nargs="+", type=int, help="of each (default: 0 1 2 3 4)")
    add("--config", nargs="+", action="extend", metavar="FILE", help="YAML files of settings, or recipes by name")
    add("--runs", nargs="+", action="extend", metavar="FOLDER", help="finished runs, in the place of training any")
    add("--baseline", metavar="ALGO", help="default: grpo, else the first")
    add("--metric", default="reward", help="any logged number, such as eval_math500/avg@4 (default: reward)")
    add("--jobs", type=int, help="runs at a time (default: one for each GPU, else for each core)")
    add("--output_dir", default="comparison", metavar="FOLDER", help="default: comparison")
    args, flags = parser.parse_known_args(argv)
    if args.runs:
        for name in ("algo", "credit", "seeds", "config", "jobs"):
            if getattr(args, name) is not None:
                raise ValueError(f"--runs trains nothing: leave out --{name}")
        if flags:
            raise ValueError(f"--runs trains nothing: leave out {flags[0]}")
    elif not args.algo and not args.credit:
        raise ValueError("there is nothing to compare: name algorithms by --algo, or finished runs by --runs")
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    if flags and not flags[0].startswith("--"):
        raise ValueError(f"{flags[0]!r} stands behind no flag: write --name before it, --help lists them")
    return args, flags


def _finished(args: Namespace, command: str) -> int:
    from ..comparison.curves import group_runs
    from ..comparison.histories import read_history

    runs = [read_history(folder, metric=args.metric) for folder in args.runs]
    _report(args, group_runs(runs), command, left_out={}, remarks=[])
    return 0


def _grid(args: Namespace, flags: list[str], command: str) -> int:
    from ..comparison.grid import make_grid, read_entries, write_grid
    from ..comparison.running import Interrupted, cores, devices, train_all
    from ..comparison.table import Board, failures

    folder, seeds = Path(args.output_dir), args.seeds if args.seeds is not None else [0, 1, 2, 3, 4]
    entries = read_entries(args.algo or [], args.credit or [])
    names = {word: entry.label for entry in entries for word in (entry.name, entry.label)}
    _baseline(args.baseline, names)
    grid = make_grid(entries, seeds, config=args.config or [], flags=flags, folder=folder)
    write_grid(grid, folder)
    for label, dead in grid.left_out.items():
        print(f"{label}: {', '.join(dead)} left out, which it does not have")
    gpus = devices()
    board = Board(grid)
    progress: dict[str, Progress] = {}
    try:
        with board:
            progress = train_all(grid.runs, jobs=args.jobs or len(gpus) or cores(), gpus=gpus, show=board.show)
    except Interrupted as stop:
        done = sum(run.is_finished for run in grid.runs)
        cause = "Ctrl-C" if stop.number == signal.SIGINT else stop
        print(
            f"\ninterrupted ({cause}): {done} of {len(grid.runs)} runs are finished; go on with: {command}",
            file=sys.stderr,
        )
        return 128 + stop.number
    failed = failures(grid.runs, progress)
    for sentence in failed:
        print(f"error: {sentence}", file=sys.stderr)
    groups = _groups(grid, args.metric)
    if not groups:
        return 1
    missing = [e.label for e in entries if e.label not in {group.label for group in groups}]
    remarks = [*failed, *([f"Not one run is finished: {', '.join(missing)}."] if missing else [])]
    _report(args, groups, command, left_out=grid.left_out, remarks=remarks, names=names)
    return 1 if failed else 0


def _groups(grid: "Grid", metric: str) -> list["Group"]:
    from ..comparison.curves import make_group
    from ..comparison.histories import read_history

    found: dict[str, list] = {}
    for run in grid.runs:
        if run.is_finished:
            found.setdefault(run.entry.label, []).append(read_history(run.folder, metric=metric))
    return [make_group(label, runs) for label, runs in found.items()]


def _baseline(asked: str | None, names: dict[str, str]) -> str:
    """The label of the baseline, of those that `names` has by all of their names."""
    if asked is None:
        return names.get("grpo") or names.get("GRPO") or next(iter(names.values()))
    found = [label for name, label in names.items() if name == asked]
    found += [label for name, label in names.items() if _plain(name) == _plain(asked)]
    if not found:
        labels = dict.fromkeys(names.values())
        raise ValueError(f"--baseline {asked!r} is not among the algorithms{choose(asked, labels)}")
    return found[0]


def _plain(name: str) -> str:
    """ "strace" of "s_trace" and of "S-trace"."""
    return "".join(c for c in name.lower() if c.isalnum())


def _report(
    args: Namespace,
    groups: list["Group"],
    command: str,
    *,
    left_out: dict[str, list[str]],
    remarks: list[str],
    names: dict[str, str] | None = None,
) -> None:
    from ..comparison.report import Comparison, write_report

    label = _baseline(args.baseline, names or {group.label: group.label for group in groups})
    baseline = next((group for group in groups if group.label == label), groups[0])
    if baseline.label != label:
        remarks = [*remarks, f"{label} has no finished run: the baseline is {baseline.label}."]
    made = Comparison(tuple(groups), baseline, args.metric, command, left_out, tuple(remarks))
    for page in write_report(made, Path(args.output_dir)):
        print(page)
