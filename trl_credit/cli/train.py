"""`trl-credit train`: trains a model, in several processes if `--accelerate_config` is given."""

from ..support.errors import fail
from ..support.signals import command_here
from ..support.startup import begin
from .launch import LAUNCHER_HELP, launch, take_launcher


PROGRAM = ("trl-credit", "train")


def main(argv: list[str]) -> int:
    """Trains, and returns the exit code: with several processes, that of the process that failed first."""
    try:
        flags, typed, rest = take_launcher(argv)
    except ValueError as error:
        fail(error, code=2)
    begin()
    if flags and not {"-h", "--help"} & set(rest):
        return launch(flags, typed, PROGRAM, rest)
    from .training import train

    train(rest, command=command_here(PROGRAM), prog=" ".join(PROGRAM), epilog=LAUNCHER_HELP)
    return 0
