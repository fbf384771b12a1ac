"""Processes that enforce time limits, even while C code keeps Python from running.

A call that hangs in a regular expression holds the lock that every other thread needs, so nothing inside the process
can end it. This file has both sides: `Watchdog` starts a process for each call, and the file itself, run as a script
with the standard library alone, is that process.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


GRACE = 3.0  # seconds after the limit, so that the process can raise the error itself if it is able to
_LOOK = 0.5  # seconds between two checks that the watched process is alive
_LAST_WORDS = 2.0  # seconds for a message, which blocks if nobody reads stderr


class WatchdogError(RuntimeError):
    """The watching process cannot be started."""


class Watchdog:
    """Has another process wait for the end of a call.

    If a call neither ends nor is abandoned within its limit and `GRACE`, that process writes the reason to stderr and
    kills this one with SIGKILL; in a notebook or at a prompt it only writes.
    """

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()

    @contextlib.contextmanager
    def watch(self, limit: float, *, message: str) -> Iterator[None]:
        """Watches a call that may take `limit` seconds.

        Args:
            message (`str`):
                One line that says what took too long, and the fix. The effect on the process is appended.

        Raises:
            WatchdogError: the process cannot be started.
        """
        kill = not is_interactive()
        effect = "The error is raised as soon as Python runs again; if it never does, restart the kernel."
        if kill:
            effect = "The call cannot be interrupted, so this process is killed; the last checkpoint is complete."
        until = time.monotonic() + limit + GRACE  # all processes of a machine share this clock
        process = _start({"watched": os.getpid(), "until": until, "message": f"{message} {effect}", "kill": kill})
        self._running.add(process)
        try:
            yield
        finally:
            self._running.discard(process)
            _end(process)

    def forget(self) -> None:
        """Stops watching all running calls, after their caller has stopped waiting."""
        while self._running:
            _end(self._running.pop())


def is_interactive() -> bool:
    """Whether a user works in this process, at a prompt or in a notebook, and would lose its state."""
    if multiprocessing.parent_process() is not None:
        return False  # its parent may be interactive
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or shell is not None


@functools.cache
def default_watchdog() -> Watchdog:
    """The watchdog of this process."""
    return Watchdog()


def _start(call: dict[str, Any]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            # without the site's packages it starts in a fiftieth of a second
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), json.dumps(call)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
    except OSError as error:
        raise WatchdogError(
            f"the process that watches reward_timeout cannot be started ({error}): allow this user another process, "
            "or set reward_timeout=None."
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _serve(watched: int, until: float, message: str, kill: bool) -> None:
    """Waits until the call is late, or the process `watched` has ended. A call that ends ends this process."""
    while os.getppid() == watched and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK))
    if os.getppid() == watched:
        text = f"\n{message}\n".encode(errors="backslashreplace")
        writer = threading.Thread(target=os.write, args=(2, text), daemon=True)
        writer.start()
        writer.join(_LAST_WORDS)
        if kill:
            os.kill(watched, getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    _serve(**json.loads(sys.argv[1]))
