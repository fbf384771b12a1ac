"""A process that enforces the time limits of a rank, even while C code keeps Python from running.

A call that hangs in a regular expression holds the lock that every other thread needs, so nothing inside the process
can end it. This file has both sides: `Watchdog` reports the running calls, and the file itself, run as a script with
the standard library alone, is the process that watches them.
"""

import atexit
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


GRACE = 3.0  # seconds after the limit, so that the process can raise the error itself if it is able to
_LOOK = 0.1  # seconds between two looks at the running calls
_LAST_WORDS = 2.0  # seconds for a message, which blocks if nobody reads stderr


class WatchdogError(RuntimeError):
    """The watching process cannot be started."""


class Watchdog:
    """Tells another process which calls run, and until when.

    If a call neither ends nor is abandoned within its limit and `GRACE`, that process writes the reason to stderr and
    kills this one with SIGKILL; in a notebook or at a prompt it only writes. It starts with the first watched call,
    ends with this process, and is replaced if something ends it. A watchdog is thread-safe.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._running: list[dict] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    @contextlib.contextmanager
    def watch(self, name: str, limit: float, *, message: str) -> Iterator[None]:
        """Watches a call that may take `limit` seconds.

        Args:
            name (`str`):
                Name of the function. If several calls run at once, the message names the others too.
            message (`str`):
                One line that says what took too long, and the fix. The effect on the process is appended.

        Raises:
            WatchdogError: the process cannot be started.
        """
        # all processes of a machine share this clock, so it does not matter when the line is read
        until = time.monotonic() + limit + GRACE
        call = {"name": name, "until": until, "message": message, "kill": not is_interactive()}
        try:
            with self._lock:
                self._running.append(call)
                self._tell()
            yield
        finally:
            with self._lock:
                if call in self._running:
                    self._running.remove(call)
                    self._tell()

    def forget(self) -> None:
        """Stops watching all running calls, after their caller has stopped waiting."""
        with self._lock:
            self._running.clear()
            self._tell()

    def close(self) -> None:
        """Ends the process. The next call starts a new one."""
        with self._lock:
            self._end()

    def _tell(self) -> None:
        line = json.dumps(self._running).encode() + b"\n"
        try:
            if self._process is not None:
                self._write(line)
                return
        except OSError:  # something ended it
            self._end()
        if self._running:
            self._process = _start()
            self._write(line)

    def _write(self, line: bytes) -> None:
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.kill()
            process.wait()


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


if hasattr(os, "register_at_fork"):  # a forked child has its own calls
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
            start_new_session=True,  # Ctrl-C is not for it
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
    """Reads which calls run, until the process `watched` ends its pipe or another thread ends this process."""
    running: list[dict] = []
    threading.Thread(target=_look, args=(watched, running), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        running[:] = json.loads(line)


def _look(watched: int, running: list[dict]) -> None:
    """Reports late calls while the process `watched` lives, also if its forks keep the pipe open."""
    reported: list[float] = []
    while os.getppid() == watched:
        calls = sorted((call for call in running if call["until"] not in reported), key=lambda call: call["until"])
        if calls and calls[0]["until"] <= time.monotonic():
            late, *others = calls
            reported.append(late["until"])
            _report(late, others=[call["name"] for call in others])
            if late["kill"] and os.getppid() == watched:
                os.kill(watched, getattr(signal, "SIGKILL", signal.SIGTERM))
                break
        time.sleep(_LOOK)
    os._exit(0)


def _report(call: dict, *, others: list[str]) -> None:
    message = call["message"]
    if others:  # in an event loop, a call that blocks delays all others
        message += f" Also running: {', '.join(map(repr, others))}."
    if call["kill"]:
        message += " The call cannot be interrupted, so this process is killed; the last checkpoint is complete."
    else:
        message += " The error is raised as soon as Python runs again; if it never does, restart the kernel."
    writer = threading.Thread(target=_write_error, args=(message,), daemon=True)
    writer.start()
    writer.join(_LAST_WORDS)


def _write_error(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"\n{message}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
