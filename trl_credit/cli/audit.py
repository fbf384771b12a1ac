"""Does the credit point where it should? Compares the credit of algorithms with what tokens are truly worth, on your
model and data, before you train. Nothing is trained.

  trl-credit audit                                                          the embedded model and task
  trl-credit audit --algo grpo s_trace "wide=s_trace --trace_lambda 0.99" --model_name_or_path M --dataset_name D
  trl-credit audit RUN                        the last responses that a run logged, with its model, data and reward

It samples batches, and continues some responses from their tokens to measure the value before and after each. It
prints a table, and writes it to audit.md and audit.html, with the value of each token. All other flags are those of
`trl-credit train`. The same command resumes.
"""

import shlex
import sys
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings.parser import OneLineParser
from ..support.errors import check_output_dir, fail
from ..support.startup import prepare_process, quiet_start


if TYPE_CHECKING:
    from ..lab.audit import Audit

PROGRAM = "trl-credit audit"
_DEFAULT = ["s_trace", "p_trace", "grpo_lambda", "random=s_trace --selector random"]


def main(argv: list[str]) -> int:
    """Returns the exit code: 0, 2 for invalid input, 130 after Ctrl-C."""
    quiet_start()
    try:
        args, flags = _parse(argv)
        from ..lab.tables import for_terminal

        print(for_terminal(str(_audit(args, flags))))
        print(*(str(Path(args.output_dir) / f"audit.{kind}") for kind in ("html", "md")), sep="\n")
        return 0
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        fail(error, code=2)
    except KeyboardInterrupt:
        command = shlex.join([*PROGRAM.split(), *argv])
        print(f"\ninterrupted: finished calls are kept; go on with: {command}", file=sys.stderr)
        return 130


def _parse(argv: list[str]) -> tuple[Namespace, list[str]]:
    parser = OneLineParser(prog=PROGRAM, description=__doc__, usage="%(prog)s [RUN] [--flag value …]")
    add = parser.add_argument
    add("--algo", nargs="+", action="extend", metavar="ALGO", help='algorithms, or "NAME=ALGO --flag value …"')
    add("--credit", nargs="+", action="extend", metavar="FILE.py:FUNCTION", help="your credit functions, or NAME=…")
    add("--responses", type=int, default=36, help="responses whose tokens are measured (default: 36)")
    add("--continuations", type=int, default=32, help="continuations of a state, on average (default: 32)")
    add("--batches", type=int, default=20, help="batches for gradients (default: 20)")
    add("--token_budget", type=int, default=4_000_000, help="tokens of continuations (default: 4,000,000)")
    add("--no_gradient", action="store_true", help="leave out progress, which needs backward passes")
    add("--trust_run", action="store_true", help="run functions that RUN names")
    add("--output_dir", metavar="FOLDER", help="default: audit, in RUN's folder if it is given")
    run, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    args, flags = parser.parse_known_args(words, Namespace(run=run))
    if flags and not flags[0].startswith("--"):
        raise ValueError(f"{flags[0]!r} follows no flag: write --name before it, --help lists them")
    args.output_dir = args.output_dir or str(Path(args.run or "") / "audit")
    check_output_dir(Path(args.output_dir))
    return args, [*(_settings(args) if args.run else []), *flags, "--output_dir", args.output_dir]


def _settings(args: Namespace) -> list[str]:
    """The flags with which a run's model, data, rewards and sampling are used again."""
    from ..data import DataArguments
    from ..lab.evaluation.runs import check_trusted, read_training

    if (run := read_training(args.run)) is None or run.data is None:
        raise ValueError(f"{args.run} is no folder of a run that trl-credit train made")
    task, identity = run.record["task"], run.identity
    check_trusted(args.run, task["reward"], command=["audit", args.run], trust_run=args.trust_run)
    names = ("temperature", "top_p", "top_k", "num_generations", "max_completion_length", "seed")
    # no other flag that the folder may name: it may be somebody else's
    known = {name: task[name] for name in ("reward", *(f.name for f in fields(DataArguments))) if name in task}
    settings = {"model_name_or_path": args.run, **known, **{name: identity.get(name) for name in names}}
    words = {name: list(map(str, x if isinstance(x, list) else [x])) for name, x in settings.items() if x is not None}
    if any(word.startswith("--") for of in words.values() for word in of):
        raise ValueError(f"credit_run.json in {args.run!r} is damaged: a value of it is a flag")
    return [word for name, values in words.items() for word in (f"--{name}", *values)]


def _audit(args: Namespace, flags: list[str]) -> "Audit":
    from ..demo import TASKS
    from ..lab.audit import audit
    from ..lab.comparison.entries import read_entries
    from ..lab.explain import read_rollouts
    from ..lab.explain.segments import dataset_rows
    from ..settings.arguments import parse_arguments
    from .training import check_start, make_data, make_rewards, make_trainer

    prepare_process(imports=bool(args.credit))
    names = [name for name in args.algo or _DEFAULT if name != "grpo"]
    entries = read_entries(["grpo", *names], args.credit or [])  # GRPO is the baseline
    configs = {entry.label: parse_arguments([*entry.words, *flags]).args for entry in entries}
    choices = parse_arguments(["--algo", "grpo", *flags])
    if (task := TASKS.get(choices.data.dataset_name)) is not None and task.environment is not None:
        choices = parse_arguments(["--algo", "spo_chain", "--segmentation", "turns", *flags])  # it continues them
    check_start(choices)
    rewards = make_rewards(choices)
    trainer = make_trainer(choices, rewards, make_data(choices, rewards), command=PROGRAM.split())
    names = ("responses", "continuations", "batches", "token_budget")
    options = {name: getattr(args, name) for name in names} | {"folder": args.output_dir}
    if args.run:
        shard = read_rollouts(args.run)
        options["logged"] = (shard, dataset_rows(shard, rewards))
    return audit(trainer, algorithms=configs, gradient=not args.no_gradient, **options)
