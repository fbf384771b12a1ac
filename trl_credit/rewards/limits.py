"""Calls that have a limit of time: a `LimitPassed` where Python can raise it, the watchdog where it cannot."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..signals import wait
from .watchdog import GRACE, default_watchdog


_FAREWELL = GRACE / 3  # seconds for a coroutine that is cancelled


class LimitPassed(TimeoutError):
    """A call took longer than it may. What it returned or raised afterwards is not looked at."""


@dataclass(frozen=True)
class Limit:
    """Of one call.

    Args:
        seconds (`float`): > 0 and finite.
        name (`str`): of what is called.
        message (`str`): one line that says what took too long, and what to do.
    """

    seconds: float
    name: str
    message: str

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in a thread of its own, which is left behind if it takes too long.

        Raises:
            LimitPassed: it did.
            BaseException: whatever the function raised.
        """
        outcome, ended = _Outcome(), threading.Event()

        def run() -> None:
            try:
                outcome.returned(function())
            except BaseException as error:  # SystemExit would be lost with the thread
                outcome.raised(error)
            ended.set()

        with default_watchdog().watch(self.name, self.seconds, message=self.message):
            # a daemon, so that a function that never returns does not keep the process alive
            thread = threading.Thread(target=run, daemon=True)
            start = time.monotonic()
            thread.start()
            wait(ended, self.seconds)
        return self._in_time(outcome, start)

    async def wait(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits what a function returns, in the loop that runs: what belongs to that loop can be used.

        Raises:
            LimitPassed: it took too long, and was cancelled.
            BaseException: whatever the function raised.
        """
        outcome = _Outcome()

        async def run() -> None:
            try:
                outcome.returned(await function())
            except BaseException as error:  # SystemExit would end the loop, and whoever waits would wait for ever
                outcome.raised(error)

        with default_watchdog().watch(self.name, self.seconds, message=self.message):
            start = time.monotonic()
            task = asyncio.ensure_future(run())
            try:
                # not wait_for, which waits on for a task that refuses to be cancelled
                await asyncio.wait({task}, timeout=self.seconds)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_FAREWELL)  # still watched, since what it does then may block
        return self._in_time(outcome, start)

    def _in_time(self, outcome: "_Outcome", start: float) -> Any:
        # by the clock, not by what came first: this thread may have been kept from running
        if outcome.at - start > self.seconds:
            raise LimitPassed(self.message) from outcome.error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class _Outcome:
    """What became of a call, and when."""

    def __init__(self) -> None:
        self.at = math.inf
        self.value: Any = None
        self.error: BaseException | None = None

    def returned(self, value: Any) -> None:
        self.value, self.at = value, time.monotonic()

    def raised(self, error: BaseException) -> None:
        self.error, self.at = error, time.monotonic()
