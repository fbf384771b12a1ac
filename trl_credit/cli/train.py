"""`trl-credit train`: trains a model, in several processes if `--accelerate_config` is given."""

from collections.abc import Iterable

from ..settings.early import check_names
from ..settings.parser import asks_for_help, typed_fields
from ..support.errors import fail
from ..support.signals import command_here
from ..support.startup import begin, prepare_process
from .launch import LAUNCHER_HELP, launch, take_launcher


PROGRAM = ("trl-credit", "train")


def main(argv: list[str]) -> int:
    """Trains, and returns the exit code: with several processes, that of the process that failed first."""
    try:
        flags, typed, rest = take_launcher(argv)
    except ValueError as error:
        fail(error, code=2)
    program = {"prog": " ".join(PROGRAM), "epilog": LAUNCHER_HELP}
    begin_training(rest, **program)
    if flags:
        return launch(flags, typed, PROGRAM, rest)
    from .training import train

    train(rest, command=command_here(PROGRAM), **program)
    return 0


def begin_training(argv: Iterable[str], **program: str) -> None:
    """The first call of a training script, before torch and TRL are imported: see [`begin`]. Ends at an unknown name.
    Prints `--help`, and ends, without the import of a trainer.

    Args:
        argv (iterable of `str`):
            The flags.
        program (`str`):
            `prog` and `epilog` of `--help`.

    Raises:
        SystemExit: after `--help`, or after the lines of errors.
    """
    begin()
    argv = list(argv)
    try:
        if not asks_for_help(argv):
            return check_names(argv)
        from ..lab.evaluation import PROTOCOLS
        from ..settings.arguments import parse_arguments

        prepare_process(imports="credit" in typed_fields(argv))
        parse_arguments(argv, protocols=PROTOCOLS, **program)
    except (ValueError, OSError) as error:
        fail(error, code=2)
