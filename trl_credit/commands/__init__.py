"""The command `trl-credit`, also `python -m trl_credit`. Each of its parts is a module with `main(argv) -> int`."""

import os
import signal
import sys
from importlib import import_module
from typing import NamedTuple

from .. import __version__
from ..mistakes import choose


class Command(NamedTuple):
    """A part of the command: its module here, which is imported when it is asked for, and what it does."""

    module: str
    summary: str


COMMANDS = {
    "train": Command("train", "Train a model; every setting is a flag, and --config takes recipes by name."),
    "eval": Command("eval", "Evaluate models: pass@k, best@k, avg@k and maj@k with 95 % intervals; compare two."),
    "view": Command("view", "Show which token got how much credit: one HTML file, or a response in the terminal."),
    "compare": Command("compare", "Compare algorithms over seeds: curves, intervals, and which differences they show."),
    "explain": Command("explain", "Show the credit that every algorithm would give to the same responses."),
    "push": Command("push", "Push a trained model, its card and plots to the Hub."),
    "plan": Command("plan", "Count what a run would generate, train on, compute and hold, before it is started."),
    "recipes": Command("recipes", "List, search and print the recipes of the papers' runs."),
}
# whose output is read, and no longer made when the reader goes
READ = ("view", "explain", "plan", "recipes")


def main(argv: list[str] | None = None) -> int:
    """Runs the part that the first word names; the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    first = argv[0] if argv else "--help"
    if first in ("-h", "--help"):
        print(_help())
        return 0
    if first in ("-V", "--version"):
        print(f"trl-credit {__version__}")
        return 0
    if first not in COMMANDS:
        print(f"error: trl-credit has no command {first!r}{choose(first, COMMANDS)}", file=sys.stderr)
        return 2
    part = import_module(f".{COMMANDS[first].module}", __name__)
    if first not in READ:
        return part.main(argv[1:])
    try:
        code = part.main(argv[1:])
        sys.stdout.flush()  # here, and not at the exit, where nobody could catch what goes wrong
    except BrokenPipeError:
        return _left_alone()
    return code


def _left_alone() -> int:
    """The exit code of a command whose reader has gone, such as `head`: that of one that the signal ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left once more at the exit
    return 128 + signal.SIGPIPE


def _help() -> str:
    lines = [f"  {name:<9}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: trl-credit COMMAND [--flag value …]\n",
            "Fine-grained credit assignment for TRL's GRPOTrainer.\n",
            *lines,
            "\n`trl-credit COMMAND --help` lists the flags of one. Several processes:",
            "`trl-credit train --accelerate_config NAME …`, or `accelerate launch -m trl_credit train …`.",
        ]
    )
