"""Time limits of calls: a `LimitPassed` if Python can raise it, else the watchdog."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from ..support.signals import wait
from .watchdog import GRACE, default_watchdog


_CANCELLING = GRACE / 3  # seconds for a coroutine that is cancelled


class LimitPassed(TimeoutError):
    """A call took too long. What it returns or raises later is ignored."""


def call_within(seconds: float, function: Callable[[], Any], *, message: str) -> Any:
    """Runs a function in its own thread, which is abandoned if it takes too long.

    Args:
        seconds (`float`): limit, > 0 and finite.
        message (`str`): one line that says what took too long, and the fix.

    Raises:
        LimitPassed: it took too long.
        BaseException: whatever the function raises.
    """
    ended = threading.Event()

    def run() -> None:
        with outcome:
            outcome.value = function()
        ended.set()

    with default_watchdog().watch(seconds, message=message):
        outcome = _Outcome()
        # a daemon, so that a function that never returns does not keep the process alive
        threading.Thread(target=run, daemon=True).start()
        wait(ended, seconds)
    return outcome.within(seconds, message)


async def await_within(seconds: float, function: Callable[[], Awaitable[Any]], *, message: str) -> Any:
    """As [`call_within`], for what a function returns in the running event loop, so that it may use objects of that
    loop. What takes too long is cancelled."""

    async def run() -> None:
        with outcome:
            outcome.value = await function()

    # in an event loop, a call that blocks delays all others
    others = " Another `async` function may block the event loop that they share."
    with default_watchdog().watch(seconds, message=message + others):
        outcome = _Outcome()
        task = asyncio.ensure_future(run())
        try:
            # not wait_for, which keeps waiting for a task that refuses to be cancelled
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCELLING)  # still watched, since its reaction may block
    return outcome.within(seconds, message)


class _Outcome:
    """What a call returned or raised, and when. As a context it catches everything: SystemExit would be lost with a
    thread, and would end an event loop while others wait for it."""

    def __init__(self) -> None:
        self.start, self.end = time.monotonic(), math.inf
        self.value: Any = None
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error, self.end = error, time.monotonic()
        return True

    def within(self, seconds: float, message: str) -> Any:
        # by the clock, not by what came first, since this thread may have been kept from running
        if self.end - self.start > seconds:
            raise LimitPassed(message) from self.error
        if self.error is not None:
            raise self.error
        return self.value
