"""Ctrl-C and SIGTERM in a script, and the end of its process. Imports no torch."""

import atexit
import functools
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar


T = TypeVar("T")

LAUNCHED_BY = "TRL_CREDIT_LAUNCHED_BY"  # environment variable of launched processes: the words of the command
_POLL = 0.1  # seconds between two looks at an event
_ECHO = 2.0  # seconds within which a launcher passes on a Ctrl-C that its processes already got from the terminal
_THREADS_END = 0.3  # seconds


def is_main() -> bool:
    """Whether this is the main process of those that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """Whether accelerate's or torch's launcher started this process."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def end_at_once(number: int, frame: Any) -> None:
    """The handler of Ctrl-C before there is anything to keep."""
    if is_main():
        print("\ninterrupted while loading: nothing was trained or written", file=sys.stderr, flush=True)
    os._exit(128 + number)  # an exception may get lost in the import of a C extension


@functools.cache
def let_threads_finish() -> None:
    """Lets torch's threads end before Python shuts down.

    A thread of gloo drops the tensors of a collective call shortly after the call, and needs Python's lock for that. If
    Python is already shutting down, the process aborts ("terminate called without an active exception", exit code -6)
    after it has done its work. Destroying the process group first is not enough if others, such as DeepSpeed, keep it.
    """
    atexit.register(time.sleep, _THREADS_END)  # a sleep releases the lock


def command_here(program: Iterable[str]) -> list[str]:
    """The command that started this process for a subcommand of `trl-credit`, without the subcommand's flags."""
    if by := os.environ.get(LAUNCHED_BY):
        return shlex.split(by)
    _, *subcommand = program
    return ["accelerate", "launch", "-m", "trl_credit", *subcommand] if is_launched() else list(program)


def without_flag(argv: Iterable[str], name: str) -> list[str]:
    """A command line without one flag and its values."""
    words, skip = [], False
    for word in argv:
        if word.startswith("--"):
            skip = word.partition("=")[0][2:].replace("-", "_") == name
        if not skip:
            words.append(word)
    return words


def wait(event: threading.Event, timeout: float | None = None) -> bool:
    """Waits until an event is set, at most `timeout` seconds, and reacts to signals meanwhile. Returns whether it is
    set.

    Python runs a signal's handler when the main thread is awake. If the signal comes just before a plain wait begins,
    or the kernel gives it to another thread, the main thread may never wake. Use an event, not `Thread.join`: after an
    interrupted join, Python 3.11 and 3.12 regard the thread as ended although it runs.
    """
    end = math.inf if timeout is None else time.monotonic() + timeout
    while not event.is_set() and (left := end - time.monotonic()) > 0:
        event.wait(min(_POLL, left))
    return event.is_set()


def in_thread(work: Callable[[], T], *, timeout: float | None = None) -> tuple[bool, Future[T]]:
    """Runs `work` in a thread, which is abandoned after `timeout` seconds or a Ctrl-C.

    Returns:
        `tuple[bool, Future]`: whether it ended in time, and what it returned or raised.
    """
    outcome: Future[T] = Future()
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised again in the waiting thread
            outcome.set_exception(error)
        finally:
            seconds.append(time.monotonic() - start)
            ended.set()

    start, seconds = time.monotonic(), []
    # a daemon, so that work that never ends does not keep the process alive
    threading.Thread(target=run, daemon=True).start()
    # work that holds Python's lock may end too late and still before this thread looks
    is_in_time = wait(ended, timeout) and (timeout is None or seconds[0] <= timeout)
    return is_in_time, outcome


class StopSignals:
    """Context manager in which Ctrl-C and SIGTERM raise `KeyboardInterrupt` once; a second Ctrl-C ends the process.

    Only the main process of several has something to write. The others end at once.

    Args:
        program (`list[str]`, *optional*):
            The words before the flags in the command that resumes. Defaults to the script that runs.
    """

    def __init__(self, program: list[str] | None = None) -> None:
        self.number: int | None = None
        self._time = 0.0
        self._before: dict[int, Any] = {}
        # read before a trainer is built, which sets such variables itself
        launcher = "accelerate launch …" if is_launched() else "python"
        self._command = f"{launcher} {shlex.quote(sys.argv[0])}" if program is None else shlex.join(program)

    def __enter__(self) -> "StopSignals":
        # not SIGTERM in other processes: a Python handler would wait for a collective call that never returns
        for number in (signal.SIGINT, signal.SIGTERM) if is_main() else (signal.SIGINT,):
            before = signal.signal(number, self._handle)
            self._before[number] = signal.default_int_handler if before is end_at_once else before
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def code(self) -> int:
        """Exit code by the convention of shells: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def cause(self) -> str:
        """The signal, for messages."""
        return "SIGTERM" if self.number == signal.SIGTERM else "Ctrl-C"

    def command(self, argv: Iterable[str]) -> str:
        """The command line with which this script was started, for a shell. The Hub's token is left out."""
        return " ".join([self._command, *map(shlex.quote, without_flag(argv, "hub_token"))])

    def _handle(self, number: int, frame: Any) -> None:
        if not is_main():
            os._exit(128 + number)
        if self.number is None:
            self.number, self._time = number, time.monotonic()
            raise KeyboardInterrupt
        launched = "TORCHELASTIC_RUN_ID" in os.environ or LAUNCHED_BY in os.environ
        if number == signal.SIGINT and not (launched and time.monotonic() - self._time < _ECHO):
            os._exit(self.code)
