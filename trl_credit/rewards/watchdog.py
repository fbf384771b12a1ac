"""A process that holds a rank to its limits of time, also where C code keeps Python from looking at a clock.

A call that hangs in a regular expression holds the lock without which no other thread runs, so nothing inside of the
process can end it. This file is both sides: `Watchdog` tells the process which calls run, and the file itself, run as
a script with the standard library alone, is that process.
"""

import atexit
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path


GRACE = 3.0  # seconds after the limit, for a process that is able to raise the error itself
_LOOK = 1.0  # seconds between two looks at whether the watched process lives
_LAST_WORDS = 2.0  # seconds for a message to somebody who may have stopped to read


class WatchdogError(RuntimeError):
    """The process that watches cannot be started."""


class Watchdog:
    """Tells a process of its own which calls run, and until when.

    Should a call neither end nor be given up within its limit and `GRACE`, that process writes why to stderr and kills
    this one with SIGKILL; in a notebook or at a prompt it writes only. It starts with the first call that is watched,
    ends with this process however that ends, and is replaced if something ends it. May be used from any thread.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._running: dict[int, bytes] = {}  # what was told of the calls that have not ended
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        atexit.register(self.close)

    @contextlib.contextmanager
    def watch(self, name: str, limit: float, *, message: str) -> Iterator[None]:
        """Around a call that may take `limit` seconds.

        Args:
            name (`str`):
                Of what is called: with several calls at once, the message names the others too.
            message (`str`):
                The line that says what took too long and what to do; what becomes of the process is added.

        Raises:
            WatchdogError: the process cannot be started.
        """
        number = next(self._numbers)
        # a clock that all processes of a machine share, so that it does not matter when the line is read
        until = time.monotonic() + limit + GRACE
        call = {"number": number, "name": name, "until": until, "message": message, "kill": not is_interactive()}
        self._tell(number, json.dumps(call).encode() + b"\n")
        try:
            yield
        finally:
            self._tell(number, None)

    def forget(self) -> None:
        """Of the calls that run, none matters any longer: whoever waited for them has given up."""
        for number in tuple(self._running):
            self._tell(number, None)

    def close(self) -> None:
        """Ends the process. It starts anew with the next call."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.kill()
            process.wait()

    def _tell(self, number: int, call: bytes | None) -> None:
        with self._lock:
            if call is not None:
                self._running[number] = call
            elif self._running.pop(number, None) is None:
                return
            if self._process is not None:
                try:
                    self._write(json.dumps({"number": number}).encode() + b"\n" if call is None else call)
                    return
                except OSError:  # something ended it
                    self._process.kill()
                    self._process.wait()
                    self._process = None
            if self._running:
                try:
                    self._process = _start()
                except WatchdogError:
                    self._running.pop(number, None)  # its call is not made, and must not be watched by the next process
                    raise
                self._write(b"".join(self._running.values()))

    def _write(self, lines: bytes) -> None:
        self._process.stdin.write(lines)
        self._process.stdin.flush()


def is_interactive() -> bool:
    """Whether somebody works in this very process, at a prompt or in a notebook, and would lose what is in it."""
    if multiprocessing.parent_process() is not None:
        return False  # started from one
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or shell is not None


@functools.cache
def default_watchdog() -> Watchdog:
    """That of this process."""
    return Watchdog()


if hasattr(os, "register_at_fork"):  # a forked child has calls of its own
    os.register_at_fork(after_in_child=default_watchdog.cache_clear)


def _start() -> subprocess.Popen[bytes]:
    try:
        if not sys.executable:
            raise OSError("sys.executable is empty")
        process = subprocess.Popen(
            # without the site's packages it starts in a fiftieth of a second
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the keyboard is not for it
        )
        with process.stdout:
            if not process.stdout.readline():
                raise OSError(f"it ended with status {process.wait()}")
        return process
    except OSError as error:
        raise WatchdogError(
            f"the process that watches reward_timeout cannot be started ({error}): allow this user another process, "
            "or set reward_timeout=None."
        ) from error


def _serve(watched: int) -> None:
    """Waits until a call is late, or the process `watched` ends."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    print("ready", flush=True)
    running: dict[int, dict] = {}
    while os.getppid() == watched:
        left = min((call["until"] for call in running.values()), default=math.inf) - time.monotonic()
        try:
            # never without waiting: the line that a call has ended may be on its way
            line = lines.get(timeout=min(max(left, 0.05), _LOOK))
        except queue.Empty:
            line = None
        if line == b"":
            return
        if line is not None:
            call = json.loads(line)
            if "until" in call:
                running[call["number"]] = call
            else:
                running.pop(call["number"], None)
            continue
        for number, call in tuple(running.items()):
            if call["until"] <= time.monotonic():
                del running[number]
                _say(call, others=[other["name"] for other in running.values()])
                if call["kill"] and os.getppid() == watched:
                    os.kill(watched, getattr(signal, "SIGKILL", signal.SIGTERM))
                    return


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    lines.put(b"")


def _say(call: dict, *, others: list[str]) -> None:
    message = call["message"]
    if others:  # in one event loop, a call that blocks holds up all of them
        message += f" At the same time ran: {', '.join(map(repr, others))}."
    if call["kill"]:
        message += " It does not give way to the error, so this process is killed; the last checkpoint is whole."
    else:
        message += " The error follows as soon as it gives way; if it never does, restart the kernel."
    writer = threading.Thread(target=_write_error, args=(message,), daemon=True)
    writer.start()
    writer.join(_LAST_WORDS)


def _write_error(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"\n{message}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
    os._exit(0)  # the thread that reads may wait for ever
