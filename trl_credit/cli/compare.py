"""Is the difference real? Trains each algorithm with each seed, or reads finished runs, and writes a report. The report
has the difference of each algorithm from a baseline, paired by seed, with a 95 % interval. Its test is corrected for
the number of algorithms.

  trl-credit compare --algo grpo s_trace spo_chain
  trl-credit compare --algo grpo s_trace "random=s_trace --selector random" --max_steps 100 --seeds 0 1 2 3 4
  trl-credit compare --algo grpo grpo_lambda --equal beta=0 advantage_floor=None
  trl-credit compare --algo grpo s_trace --sweep learning_rate=5e-5,1e-4,2e-4 --tuning_seeds 100 101
  trl-credit compare --algo grpo --credit mine.py:unsure_more --config my_task.yaml
  trl-credit compare --runs runs/a new=runs/b new=runs/c --output_dir comparison

All other flags are those of `trl-credit train`, and apply to all runs. Without a model, the runs train on the embedded
task. If an algorithm does not have a setting, its runs go without it, and a line says so. The same command resumes
unfinished runs.
"""

import shlex
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ..settings.parser import OneLineParser
from ..support.errors import check_output_dir, choose, disk_full, fail, spelling
from ..support.files import named_path, refuse_link
from ..support.startup import prepare_process, quiet_start


if TYPE_CHECKING:
    from ..lab.comparison.results import Results

PROGRAM = "trl-credit compare"
_OF_TRAINING = ("algo", "credit", "seeds", "config", "equal", "sweep", "tuning_seeds", "jobs")


def main(argv: list[str]) -> int:
    """Returns the exit code: 0, 1 if a run failed, 2 for invalid input, 130 after Ctrl-C and 143 after SIGTERM."""
    quiet_start()
    command = shlex.join([*PROGRAM.split(), *argv])
    try:
        args, flags = _parse(argv)
        args.command = command
        folder = Path(args.output_dir)
        check_output_dir(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(refuse_link(folder / ".compare.lock"), timeout=0):
            results, has_failed = _compare_finished(args) if args.runs else _train_grid(args, flags)
            if results is not None:
                from ..lab.comparison.report import console_answer, write_report

                print(console_answer(results), *write_report(results, folder), sep="\n")
            return int(has_failed)
    except Timeout:
        fail(f"another comparison is running in {folder}: choose another --output_dir", code=2)
    except (ValueError, OSError, ImportError) as error:
        fail(error, code=1 if disk_full(error) else 2)
    except KeyboardInterrupt as stop:
        number = signal.Signals(*(stop.args or [signal.SIGINT]))
        print(f"\ninterrupted ({number.name}): finished runs are kept; go on with: {command}", file=sys.stderr)
        return 128 + number


def _parse(argv: list[str]) -> tuple[Namespace, list[str]]:
    parser = OneLineParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    add("--algo", nargs="+", action="extend", metavar="ALGO", help='algorithms, or "NAME=ALGO --flag value …"')
    add("--credit", nargs="+", action="extend", metavar="FILE.py:FUNCTION", help="your credit functions, or NAME=…")
    add("--seeds", nargs="+", type=int, help="seeds of each algorithm (default: 10 on an embedded task, else 5)")
    add("--config", nargs="+", action="extend", metavar="FILE", help="YAML files of settings, or recipes by name")
    add("--runs", nargs="+", action="extend", metavar="[NAME=]FOLDER", help="compare finished runs, and train nothing")
    add("--baseline", metavar="ALGO", help="default: grpo, else the first algorithm")
    add("--metric", default="reward", help="any logged number, such as eval_math500/avg@4 (default: reward)")
    add("--primary", choices=("area", "end"), default="area", help="the verdict's score: mean over the run, or its end")
    add("--equal", nargs="+", action="extend", metavar="NAME=VALUE", help="settings that all algorithms must share")
    add("--sweep", metavar="NAME=A,B,…", help="find the best value of a setting for each algorithm")
    add("--tuning_seeds", nargs="+", type=int, help="seeds of the runs of --sweep (default: 100 101)")
    add("--jobs", type=int, help="runs at a time (default: one per GPU, or one per core without GPUs)")
    add("--output_dir", default="comparison", metavar="FOLDER", help="default: comparison")
    args, flags = parser.parse_known_args(argv)
    if flags and not flags[0].startswith("--"):
        fix = "finished runs follow --runs, algorithms --algo, and --help lists all flags"
        raise ValueError(f"{flags[0]!r} is not used, as it follows no flag: {fix}")
    idle = [f"--{name}" for name in _OF_TRAINING if getattr(args, name) is not None] + flags
    if args.runs and idle:
        raise ValueError(f"--runs trains nothing: leave out {idle[0]}")
    if not (args.runs or args.algo or args.credit):
        raise ValueError("there is nothing to compare: name algorithms with --algo, or finished runs with --runs")
    if args.tuning_seeds is not None and args.sweep is None:
        raise ValueError("--tuning_seeds does nothing without --sweep: leave it out")
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    return args, flags


def _compare_finished(args: Namespace) -> tuple["Results", bool]:
    from ..lab.comparison.groups import group_runs
    from ..lab.comparison.histories import read_history
    from ..lab.comparison.results import make_results

    words = map(named_path, args.runs)
    groups = group_runs([read_history(folder, metric=args.metric, name=name) for name, folder in words])
    groups.sort(key=lambda group: not group.runs[0].is_plain)  # a baseline is plain where one is there
    baseline = _baseline(args.baseline, {group.label: group.label for group in groups})
    remark = "The primary metric was named when these runs were finished, not before."
    names = {"metric": args.metric, "primary": args.primary, "command": args.command}
    return make_results(groups, baseline, remarks=[remark], **names), False


def _train_grid(args: Namespace, flags: list[str]) -> tuple["Results | None", bool]:
    """The results, `None` if no run of the verdict is finished, and whether a run failed."""
    from ..lab.comparison.entries import read_entries, read_equal, read_sweep
    from ..lab.comparison.grid_settings import Shared, make_grid
    from ..lab.comparison.run import train_grid

    prepare_process()  # as in the runs: functions may import modules of the current folder
    entries = read_entries(args.algo or [], args.credit or [])
    label = _baseline(args.baseline, {name: e.label for e in entries for name in (e.name, e.label)})
    sweep = None if args.sweep is None else read_sweep(args.sweep, args.tuning_seeds or [100, 101])
    shared = Shared(args.config or [], flags, read_equal(args.equal or []), sweep)
    grid = make_grid(entries, args.seeds, shared, folder=Path(args.output_dir))
    for algorithm, names in grid.left_out.items():
        print(f"{algorithm} does not have {', '.join(names)}: left out")
    options = {"metric": args.metric, "primary": args.primary, "command": args.command, "jobs": args.jobs}
    return train_grid(grid, baseline=label, **options)


def _baseline(name: str | None, labels: dict[str, str]) -> str:
    """The label of the baseline. `labels` maps every name of an algorithm to its label."""
    if name is None:
        return labels.get("grpo") or labels.get("GRPO") or next(iter(labels.values()))
    by_spelling = {spelling(known): label for known, label in labels.items()}
    if spelling(name) not in by_spelling:
        raise ValueError(f"--baseline {name!r} is not among the algorithms{choose(name, set(labels.values()))}")
    return labels.get(name) or by_spelling[spelling(name)]
