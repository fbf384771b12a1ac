"""The command `trl-credit`, also `python -m trl_credit`: one module with `main(argv)` for each subcommand, which
returns an exit code, or `None` for 0.

It may import all other subpackages, and none imports it.
"""

import signal
import sys
from importlib import import_module

from .. import __version__
from ..support.errors import choose, fail
from ..support.shown import safe_console


# name of the module, and a line for `--help`
COMMANDS = {
    "train": "Train a model. Every setting is a flag. --config takes recipes by name.",
    "eval": "Evaluate models: pass@k, best@k, avg@k, maj@k with 95 % intervals. Compare models.",
    "view": "Show the credit of each token of a run, as an HTML file or in the terminal.",
    "compare": "Train algorithms with several seeds, and test which differences are real.",
    "explain": "Show the credit that each algorithm would give to the same responses.",
    "audit": "Compare the credit of algorithms with what tokens are worth, before you train.",
    "push": "Push a trained model, its card and plots to the Hub.",
    "plan": "Estimate the tokens and memory of a run before it starts.",
    "recipes": "List, search and print recipes: the settings of the papers' runs.",
    "example": "Copy an example, with data and a reward of its own, to a folder.",
    "help": "Print a page of the documentation.",
}
_PRINTING = ("view", "explain", "plan", "recipes", "example", "help")  # these raise an error for wrong input
# others end when a reader such as `head` closes the pipe
_WORKING = ("train", "eval", "compare", "explain", "audit", "push")
_HELP_FLAGS = {"-h", "--help"}


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand that the first word names, and returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    first = argv[0] if argv else "--help"
    try:
        with safe_console(raises=first not in _WORKING or not _HELP_FLAGS.isdisjoint(argv)):
            return _run(first, argv)
    except BrokenPipeError:  # the reader has closed it, which is not an error
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, ImportError) as error:
        if first not in _PRINTING:
            raise
        fail(error, code=2)


def _run(first: str, argv: list[str]) -> int:
    if first in _HELP_FLAGS:
        print(_help())
        return 0
    if first in ("-V", "--version"):
        print(f"trl-credit {__version__}")
        return 0
    if first not in COMMANDS:
        print(f"error: trl-credit has no command {first!r}{choose(first, COMMANDS)}", file=sys.stderr)
        return 2
    return import_module(f".{first}", __name__).main(argv[1:]) or 0


def _help() -> str:
    lines = "\n".join(f"  {name:<9}{summary}" for name, summary in COMMANDS.items())
    return f"""\
usage: trl-credit COMMAND [--flag value …]

Fine-grained credit assignment for TRL's GRPOTrainer.

{lines}

`trl-credit COMMAND --help` lists the flags of a command. To train in several processes, use
`trl-credit train --accelerate_config NAME …` or `accelerate launch -m trl_credit train …`."""
