"""Ctrl-C and SIGTERM in a script. Needs no torch."""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any


LAUNCHED_BY = "TRL_CREDIT_LAUNCHED_BY"  # a variable of processes that the command started: the words that did so
_PIECE = 0.1  # seconds of a wait that nothing interrupts
_ECHO = 2.0  # seconds within which a launcher passes on the Ctrl-C that its processes have had already


def is_main() -> bool:
    """Whether this is the process that speaks, where a launcher started several."""
    return os.environ.get("RANK", "0") == "0"


def end_at_once(number: int, frame: Any) -> None:
    """The handler of Ctrl-C before there is anything to keep."""
    if is_main():
        print("\ninterrupted while loading: nothing was trained or written", file=sys.stderr, flush=True)
    os._exit(128 + number)  # an exception may get lost in the import of a C extension


def command_here(program: Iterable[str]) -> list[str]:
    """The words behind which the flags of a part of the command `trl-credit` stand, as this process was started."""
    if by := os.environ.get(LAUNCHED_BY):
        return shlex.split(by)
    if "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        _, *part = program
        return ["accelerate", "launch", "-m", "trl_credit", *part]
    return list(program)


def wait(event: threading.Event, timeout: float | None = None) -> bool:
    """Waits until an event is set, at most `timeout` seconds, so that a signal is always heard. Returns whether it is.

    Python's handler of a signal that comes just before a wait begins, or that the kernel gave to another thread, runs
    when the main thread is awake again, which after a plain wait may be never. An event, for a `Thread.join` that is
    interrupted takes its thread for ended (Python 3.10 to 3.12).
    """
    end = None if timeout is None else time.monotonic() + timeout
    while not event.is_set():
        left = _PIECE if end is None else min(_PIECE, end - time.monotonic())
        if left <= 0:
            return False
        event.wait(left)
    return True


class StopSignals:
    """Within it, Ctrl-C and SIGTERM raise `KeyboardInterrupt` once; a second Ctrl-C ends the process at once.

    Of several processes the main one alone has something to write: the others end at once.

    Args:
        program (`list[str]`, *optional*):
            What stands before the flags in the command that goes on. By default the script that runs.
    """

    def __init__(self, program: list[str] | None = None) -> None:
        self._program = program
        self.number: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook
        # before a trainer is built, which sets such variables itself
        self._launcher = "accelerate launch" if "ACCELERATE_MIXED_PRECISION" in os.environ else "python"
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._launcher = f"{'torchrun' if self._launcher == 'python' else self._launcher} …"

    def __enter__(self) -> "StopSignals":
        # elsewhere SIGTERM keeps its own way: a handler would wait for a collective call that never returns
        for number in (signal.SIGINT, signal.SIGTERM) if is_main() else (signal.SIGINT,):
            before = signal.signal(number, self._handle)
            self._before[number] = signal.default_int_handler if before is end_at_once else before
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _unraisable(self, what: Any) -> None:
        # a destructor in which the signal came cannot raise: whoever looks at `number` ends the run
        if not (self.number is not None and what.exc_type is KeyboardInterrupt):
            self._hook(what)

    @property
    def code(self) -> int:
        """Of the exit, as shells count: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def cause(self) -> str:
        """What ended the run, in words."""
        return "SIGTERM" if self.number == signal.SIGTERM else "Ctrl-C"

    def command(self, argv: Iterable[str]) -> str:
        """The command line with which this script was started, for a shell. The Hub's token is left out."""
        words, hide = [], False
        for word in argv:
            if word.startswith("--"):
                hide = word.partition("=")[0].replace("-", "_") == "__hub_token"
            if not hide:
                words.append(word)
        if self._program is not None:
            return shlex.join([*self._program, *words])
        return f"{self._launcher} {shlex.join([sys.argv[0], *words])}"

    def _handle(self, number: int, frame: Any) -> None:
        if not is_main():
            os._exit(128 + number)
        if self.number is None:
            self.number, self._at = number, time.monotonic()
            raise KeyboardInterrupt
        launched = "TORCHELASTIC_RUN_ID" in os.environ or LAUNCHED_BY in os.environ
        echo = launched and time.monotonic() - self._at < _ECHO
        if number == signal.SIGINT and not echo:
            os._exit(self.code)
