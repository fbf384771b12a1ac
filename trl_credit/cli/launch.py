"""`--accelerate_config NAME`: starts accelerate's launcher, forwards signals to it, and returns its exit code."""

import logging
import os
import shlex
import signal
import sys
from subprocess import CalledProcessError
from typing import Any

import psutil

from ..settings.parser import OneLineParser
from ..support.errors import fail, one_line
from ..support.packaged import accelerate_config, accelerate_settings
from ..support.signals import LAUNCHED_BY, is_launched


# flags of `accelerate launch` that differ from machine to machine
_FLAGS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
LAUNCHER_HELP = f"""\
Several processes, by accelerate's launcher:
  --accelerate_config NAME        A configuration of the package (zero3, fsdp2, multi_gpu, …) or a file.
  {" ".join(f"--{name}" for name in _FLAGS)}
                                  Override values of the configuration."""


def take_launcher(argv: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Splits a command line.

    Returns:
        The flags for `accelerate launch`, empty without `--accelerate_config`; the same flags as typed, for the command
        that resumes a run; and the other words.

    Raises:
        ValueError: the configuration is unknown, launcher flags come without one, or a launcher runs already.
    """
    parser = OneLineParser(add_help=False)
    for name in ("accelerate_config", *_FLAGS):
        parser.add_argument(f"--{name}")
    args, rest = parser.parse_known_args(argv)
    typed = {name: value for name in _FLAGS if (value := getattr(args, name)) is not None}
    if args.accelerate_config is None:
        if typed:
            raise ValueError(f"--{next(iter(typed))} is for accelerate's launcher: set --accelerate_config too")
        return [], [], rest
    if is_launched():
        raise ValueError("--accelerate_config starts the processes, and a launcher has started this one: leave out one")
    settings = accelerate_settings(args.accelerate_config) | typed
    words = [word for name, value in typed.items() for word in (f"--{name}", value)]
    flags = ["--config_file", str(accelerate_config(args.accelerate_config)), *words]
    if settings.get("main_process_port") is None and str(settings.get("num_machines") or 1) == "1":
        flags += ["--main_process_port", "0"]  # any free one, so that several jobs can run on one machine
    return flags, ["--accelerate_config", args.accelerate_config, *words], rest


def launch(flags: list[str], typed: list[str], program: tuple[str, ...], argv: list[str]) -> int:
    """Runs a subcommand in the processes of a configuration of accelerate.

    Ctrl-C and SIGTERM reach them, and the launcher waits until they have written plots and card.

    Args:
        flags, typed (`list[str]`):
            From [`take_launcher`].
        program (`tuple[str, ...]`):
            `("trl-credit", "train")`.
        argv (`list[str]`):
            The flags of the subcommand.

    Returns:
        `int`: the exit code of the process that failed first, or 128 + the number of a signal.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # the process itself prints what went wrong, or the line below does
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    words = [*flags, "--module", __package__.partition(".")[0], *program[1:], *argv]
    os.environ[LAUNCHED_BY] = shlex.join([*program, *typed])
    # seconds that torch's launcher waits after a signal for plots and card; its default is 30
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    for number in (signal.SIGINT, signal.SIGTERM):  # torch's launcher has handlers of its own while it runs
        signal.signal(number, _send_to_children)
    code = 0
    try:
        launch_command(launch_command_parser().parse_args(words))
    except SignalException as stop:
        return 128 + stop.sigval
    except ChildFailedError as failed:
        code = failed.get_first_failure()[1].exitcode
    except CalledProcessError as failed:
        code = failed.returncode
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        fail(f"accelerate's launcher: {one_line(error)}", code=2)
    if code < 0:
        print(f"error: a process was killed by {signal.Signals(-code).name}", file=sys.stderr)
    return 128 - code if code < 0 else code


def _send_to_children(number: int, frame: Any) -> None:
    """The handler of Ctrl-C and SIGTERM: they go to the launched processes, and this one waits for their end.

    The processes also get a terminal's Ctrl-C: `StopSignals` counts two within two seconds as one.
    """
    for child in psutil.Process().children():
        child.send_signal(number)
