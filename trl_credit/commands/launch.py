"""`--accelerate_config NAME`: starts accelerate's launcher, and passes on its processes' exit code and its signals."""

import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from ..mistakes import OneLineParser, one_line
from ..packaged import accelerate_config
from ..signals import LAUNCHED_BY


# flags of `accelerate launch` that go with it: what differs from machine to machine
_FLAGS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
# seconds for plots and card after a signal, until torch's launcher kills the processes; its own default is 30
_LAST_WORDS = 120
# exit codes for which the main process has said why
_SAID = (1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM)
LAUNCHER_HELP = f"""\
Several processes, by accelerate's launcher:
  --accelerate_config NAME        A configuration of the package (zero3, fsdp2, multi_gpu, …), or a file.
  {" ".join(f"--{name}" for name in _FLAGS)}
                                  In place of what it says."""


class Launcher(NamedTuple):
    """What `accelerate launch` is given, and the same as it was typed here, for the command that goes on with a run."""

    flags: list[str]
    typed: list[str]


def take_launcher(argv: list[str]) -> tuple[Launcher | None, list[str]]:
    """The launcher, `None` where it is not asked for, and the words of the command itself.

    Raises:
        ValueError: an unknown configuration, flags of the launcher without one, or a launcher within another.
    """
    parser = OneLineParser(add_help=False)
    for name in ("accelerate_config", *_FLAGS):
        parser.add_argument(f"--{name}")
    said, rest = parser.parse_known_args(argv)
    given = {name: value for name in _FLAGS if (value := getattr(said, name)) is not None}
    if said.accelerate_config is None:
        if given:
            raise ValueError(f"--{next(iter(given))} is for accelerate's launcher: set --accelerate_config too")
        return None, rest
    if "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError("--accelerate_config starts the processes, and a launcher has started this one: leave out one")
    others = [word for name, value in given.items() for word in (f"--{name}", value)]
    path = accelerate_config(said.accelerate_config)
    flags = ["--config_file", str(path), *others, *_free_port(path, given)]
    return Launcher(flags, ["--accelerate_config", said.accelerate_config, *others]), rest


def _free_port(config: Path, given: dict[str, str]) -> list[str]:
    """Any free port for the processes of one machine, so that several jobs may run on it, where none is named."""
    try:
        said = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []  # accelerate says what is wrong with it
    named = (said if isinstance(said, dict) else {}) | given
    # several machines have to know it of each other
    is_known = named.get("main_process_port") is not None or str(named.get("num_machines") or 1) != "1"
    return [] if is_known else ["--main_process_port", "0"]


def launch(launcher: Launcher, program: tuple[str, ...], argv: list[str]) -> int:
    """Runs a part of the command in the processes that a configuration of accelerate asks for.

    Ctrl-C and SIGTERM reach them, and the launcher waits until they have written what they keep.

    Args:
        launcher ([`Launcher`]):
            Which.
        program (`tuple[str, ...]`):
            The command's words, "trl-credit" and "train".
        argv (`list[str]`):
            The words behind them.

    Returns:
        `int`: the exit code of the process that ended first with one, 128 and the signal's number for a signal.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # that a process failed: what is wrong has been said by it, or is said below
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    words = [*launcher.flags, "--module", __package__.partition(".")[0], *program[1:], *argv]
    os.environ[LAUNCHED_BY] = shlex.join([*program, *launcher.typed])
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_LAST_WORDS))
    with _SignalsPassedOn():
        try:
            launch_command(launch_command_parser().parse_args(words))
        except SignalException as stop:
            return 128 + stop.sigval
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            return _code(failure.exitcode, f"process {rank}")
        except Exception as error:
            if (code := getattr(error, "returncode", None)) is None:
                print(f"error: accelerate's launcher: {one_line(error)}", file=sys.stderr)
                return 2
            return _code(code, "the process")
    return 0


class _SignalsPassedOn:
    """Within it Ctrl-C and SIGTERM are for the processes that were started, and this one waits for their end. torch's
    launcher has handlers of its own, which take the place of these while it runs."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._pass_on) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @staticmethod
    def _pass_on(number: int, frame: Any) -> None:
        # a terminal's Ctrl-C reaches them too: within two seconds they take both for one, see `StopSignals`
        for child in psutil.Process().children():
            child.send_signal(number)


def _code(code: int, who: str) -> int:
    """An exit code as shells have it. Where nobody else has said why, one line does."""
    code = 128 - code if code < 0 else code
    if code not in _SAID:
        what = f"was killed by {signal.Signals(code - 128).name}" if code > 128 else f"ended with exit code {code}"
        print(f"error: {who} {what}", file=sys.stderr)
    return code
