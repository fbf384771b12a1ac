"""Time limits of calls: a `LimitPassed` if Python can raise it, else the end of the process.

C code that holds Python's lock (a regular expression, a power) can be ended by nothing in Python. The timer of
`faulthandler` needs no lock: it writes the functions that run to stderr and ends the process with code 1.
"""

import asyncio
import builtins
import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ..support.signals import in_thread


GRACE = 3.0  # seconds after the limit, so that Python can raise the error itself if it is able to

_lock = threading.Lock()
_deadlines: dict[object, float] = {}  # of the calls that run: `faulthandler` has one timer for all of them


class LimitPassed(TimeoutError):
    """A call took too long. What it returns or raises later is ignored."""


def call_within(seconds: float | None, function: Callable[[], Any], *, message: str) -> Any:
    """Runs a function in its own thread, which is abandoned if it takes too long. Without a limit it runs in this one.

    Args:
        seconds (`float` or `None`): limit, > 0 and finite.
        message (`str`): one line that says what took too long, and the fix.

    Raises:
        LimitPassed: it took too long.
        BaseException: whatever the function raises.
    """
    if seconds is None:
        return function()

    def within_reward_timeout() -> Any:  # the name is in the traceback of a process that is ended
        return function()

    with _watched(seconds):
        ended, outcome = in_thread(within_reward_timeout, timeout=seconds)
    if not ended:
        raise LimitPassed(message)
    return outcome.result()


async def await_within(seconds: float | None, function: Callable[[], Awaitable[Any]], *, message: str) -> Any:
    """As [`call_within`], for what a function returns in the running event loop, so that it may use objects of that
    loop. What takes too long is cancelled."""
    if seconds is None:
        return await function()
    start = time.monotonic()
    with _watched(seconds):
        task = asyncio.ensure_future(function())
        try:
            # not wait_for, which keeps waiting for a task that refuses to be cancelled
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE / 3)  # still watched, since its reaction may block
        finally:
            task.cancel()
    if time.monotonic() - start > seconds:  # also of a call that blocked the loop and then returned
        raise LimitPassed(message)
    return task.result()


def forget_calls() -> None:
    """Lets running calls go on without a limit, after their caller has stopped waiting."""
    _deadlines.clear()
    _arm()


@contextlib.contextmanager
def _watched(seconds: float) -> Iterator[None]:
    """Context manager that ends the process if it is still open `GRACE` after the limit. A notebook only shows what
    runs."""
    call = object()
    _deadlines[call] = time.monotonic() + seconds + GRACE
    _arm()
    try:
        yield
    finally:
        _deadlines.pop(call, None)
        _arm()


def _arm() -> None:
    """Sets the timer to the earliest deadline."""
    with _lock:
        if _deadlines:
            left = max(min(_deadlines.values()) - time.monotonic(), 1e-3)
            # at a prompt or in a notebook the user would lose the state of the process
            is_interactive = hasattr(sys, "ps1") or sys.flags.interactive or "__IPYTHON__" in vars(builtins)
            # to the descriptor of stderr, since `sys.stderr` of a notebook has none
            faulthandler.dump_traceback_later(left, exit=not is_interactive, file=2)
        else:
            faulthandler.cancel_dump_traceback_later()
