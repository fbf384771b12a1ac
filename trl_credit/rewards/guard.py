"""Checks that custom functions return rewards that are numbers, and completions that have tokens."""

import asyncio
import functools
import inspect
import itertools
import reprlib
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from types import TracebackType
from typing import Any

from torch import nn

from ..support.digests import function_label
from ..support.errors import one_line
from ..support.functions import FunctionRaised, place_of, unique_names
from ..support.shown import report, shown
from .isolation import copied, forks_end, isolated
from .limits import LimitPassed, await_within, call_within
from .signature import Rows, check_columns, check_signature
from .steps import Given, StepLedger, as_float, read_given
from .watchdog import WatchdogError


_LONGEST = 200  # characters of a prompt in a message
_LONGEST_ERROR = 500  # characters of another error's text
_values = reprlib.Repr()
_values.maxstring = _values.maxother = 80


class RewardError(ValueError):
    """A result is not a list of rewards. The message is one line with the function, a prompt and the fix."""


class RewardRaised(FunctionRaised):
    """A reward function raised an error or called `sys.exit`. The message has the function, a prompt and the place."""


def shown_prompt(prompts: Sequence[Any], i: int) -> str:
    """The start of a prompt, for a message."""
    return repr(prompts[i])[:_LONGEST] if i < len(prompts) else "unknown"


def guard_rewards(
    reward_funcs: Any, *, timeout: float | None = None, data: Sequence[Rows] = (), ledger: StepLedger | None = None
) -> Any:
    """Wraps each reward function so that its errors name it and a prompt, and it leaves the run as it was.

    Each function gets copies of the lists. A process that it forks ends with the call. After a call of a function that
    is not `async`, torch's generators, its default dtype and the working folder are as before.

    A function returns an iterable with one entry per response, which is read to its end here: a number, `None` (as in
    TRL: the function does not apply to that response), or rewards along the response, of which TRL gets the total:
    [`~trl_credit.rewards.StepRewards`], pairs of character offset and value, or a value per token. Reward models
    (`nn.Module` or a model id) are passed through; their outputs are checked after they are gathered. Takes and returns
    one function or a list, as the trainer does.

    Args:
        timeout (`float`, *optional*):
            Seconds for a call and its result. The function runs in its own thread, which is abandoned if it takes
            longer; an `async` function runs in TRL's loop. Late results are not accepted. If Python cannot raise the
            error (C code that holds its lock, a blocking call in an `async` function), a watching process kills this
            one, see [`~trl_credit.rewards.watchdog.Watchdog`]. `None` and infinity: no limit.
        data (sequence of [`~trl_credit.rewards.signature.Rows`], *optional*):
            Data that the functions will be given. A signature that cannot take it is refused here.
        ledger ([`~trl_credit.rewards.steps.StepLedger`], *optional*):
            Keeps the rewards along responses.

    Raises:
        ValueError: a function cannot be called as TRL will.
        RewardError: from the wrapped function: its result is not a list of finite numbers or `None`, one per response.
        RewardRaised: from the wrapped function: it raised an error, or called `sys.exit`.
        LimitPassed: from the wrapped function: it took longer than `timeout`.
        WatchdogError: from the wrapped function: the watching process cannot be started.
    """
    if timeout is not None and timeout > threading.TIMEOUT_MAX:  # infinity too
        timeout = None
    ledger = StepLedger() if ledger is None else ledger
    if isinstance(reward_funcs, (list, tuple)):
        pairs = enumerate(zip(reward_funcs, unique_names([function_label(func) for func in reward_funcs]), strict=True))
        return [_guard(func, name, timeout, data, ledger, column) for column, (func, name) in pairs]
    return _guard(reward_funcs, function_label(reward_funcs), timeout, data, ledger, 0)


def guard_rollout(rollout_func: Callable) -> Callable:
    """Wraps a `rollout_func` of TRL so that a completion without tokens raises a `ValueError` that names its prompt."""

    @functools.wraps(rollout_func)
    def guarded(prompts: list, trainer: object) -> dict[str, Any]:
        output = rollout_func(prompts, trainer)
        for i, ids in enumerate(output.get("completion_ids", [])):
            if len(ids) == 0:
                what = f"an empty completion for prompt {i} of the batch"
                raise ValueError(f"rollout_func returned {what}: return at least the end-of-sequence token.")
        return output

    return guarded


def _guard(func: Any, name: str, timeout: float | None, data: Sequence[Rows], ledger: StepLedger, column: int) -> Any:
    if func is None or isinstance(func, (str, nn.Module)):
        return func
    if inspect.isclass(func):
        raise ValueError(f"reward function {name!r} is a class: give a function, or an instance of the class")
    for rows in data:
        check_columns(rows)
        check_signature(func, name, rows.given, source=rows.what, complete=rows.columns is not None)
    if _is_async(func):

        async def guarded(*args: Any, **kwargs: Any) -> list[float | None]:
            with _Call(func, name, kwargs, ledger, column) as call:

                async def run() -> list:
                    with forks_end():
                        return call.read(await func(*args, **call.own_arguments()))

                if timeout is None:
                    return call.numbers(await run())
                return call.numbers(await await_within(timeout, run, message=call.late(timeout)))

    else:

        def guarded(*args: Any, **kwargs: Any) -> list[float | None]:
            with _Call(func, name, kwargs, ledger, column) as call, isolated():

                def run() -> list:
                    with forks_end():
                        return call.read(func(*args, **call.own_arguments()))

                if timeout is None:
                    return call.numbers(run())
                return call.numbers(call_within(timeout, run, message=call.late(timeout)))

    guarded = functools.update_wrapper(guarded, func)
    guarded.__name__ = name  # TRL logs by it
    return guarded


class _Call:
    """One call of a reward function. As a context it turns the function's exceptions into errors that name it."""

    def __init__(self, func: Callable, name: str, kwargs: dict[str, Any], ledger: StepLedger, column: int) -> None:
        self.func, self.name, self.kwargs, self._ledger, self._column = func, name, kwargs, ledger, column
        self.responses = len(kwargs["completions"])

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None and not _is_kept(error):
            raise self.named(error) from error

    def own_arguments(self) -> dict[str, Any]:
        """The arguments, with copies of the lists: what one function writes into them is not seen by others."""
        logs = {"log_extra": self.kwargs.get("log_extra"), "log_metric": self._log_metric}
        safe = {name: shown(f"{name} of reward function {self.name!r}")(log) for name, log in logs.items()}
        return {name: safe.get(name) or copied(value) for name, value in self.kwargs.items()}

    def _log_metric(self, name: str, value: Any) -> None:
        if (number := as_float(value)) is None:
            what = f"log_metric({name!r}) of reward function {self.name!r}"
            report(what, f"{_brief(value)} (a {type(value).__name__}) is no number and is left out")
        else:
            self.kwargs["log_metric"](str(name), number)

    def late(self, seconds: float) -> str:
        return (
            f"reward function {self.name!r} took longer than reward_timeout={seconds} seconds for {self._batch()}: it "
            "hangs, or the limit is too low. Bound what it does for one response, or raise reward_timeout."
        )

    def read(self, rewards: Any) -> list:
        """The result as a list. A lazy result is read here, within its time limit, and no further than needed."""
        if inspect.iscoroutine(rewards):
            rewards.close()
            raise self._refused("a coroutine: define it with `async def`, so that it is awaited")
        if isinstance(rewards, (str, bytes, Mapping, Set)) or not _is_iterable(rewards):
            kind = f" (a {type(rewards).__name__})" if rewards is not None else ""
            raise self._refused(f"{_brief(rewards)}{kind} for {self._batch()}: return a list, one per response")
        found = list(itertools.islice(rewards, self.responses + 1))
        if len(found) != self.responses:
            more = f"more than {self.responses}" if len(found) > self.responses else len(found)
            count = len(rewards) if hasattr(rewards, "__len__") else more
            raise self._refused(f"{count} rewards for {self._batch()}: return one per response")
        return found

    def numbers(self, rewards: list) -> list[float | None]:
        """The reward of each response as TRL takes it. Rewards along a response are kept in the ledger."""
        found = [self._given(reward, i) for i, reward in enumerate(rewards)]
        self._ledger.note(self._column, found)
        return [self._ledger.total(given, i) for i, given in enumerate(found)]

    def named(self, error: BaseException) -> Exception:
        """The error that names the function."""
        if isinstance(error, TypeError):  # perhaps from the call, if the columns were not known before
            try:
                check_signature(self.func, self.name, tuple(self.kwargs), source="the data")
            except ValueError as explained:
                return explained
        if isinstance(error, SystemExit):
            what = f"called sys.exit({'' if error.code is None else _brief(error.code)})"
        else:
            what = f"raised {type(error).__name__}: {_said(error)}"
        return RewardRaised(
            f"reward function {self.name!r} {what}, on {self._batch()}{place_of(error, self.func)}. "
            "Nothing was trained on them."
        )

    def _given(self, reward: Any, i: int) -> Given:
        ids = self.kwargs.get("completion_ids")
        try:
            return read_given(reward, tokens=None if ids is None else len(ids[i]))
        except ValueError as error:
            number = as_float(reward)
            shown = str(number) if number is not None else f"{_brief(reward)} (a {type(reward).__name__})"
            why = f" ({error})" if isinstance(reward, (list, tuple)) or hasattr(reward, "tolist") else ""
            where = f"response {i} of the batch, to prompt {self._prompt(i)}"
            fix = "return a finite number, StepRewards, or None where the function does not apply"
            raise self._refused(f"{shown} for {where}{why}: {fix}") from error

    def _refused(self, what: str) -> RewardError:
        return RewardError(f"reward function {self.name!r} returned {what}.")

    def _batch(self) -> str:
        return f"{self.responses} responses, the first to prompt {self._prompt(0)}"

    def _prompt(self, i: int) -> str:
        return shown_prompt(self.kwargs.get("prompts", ()), i)


def _is_async(func: Callable) -> bool:
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)


def _is_kept(error: BaseException) -> bool:
    """Whether an error is clear already, or is not the function's own: an interrupt, or an event loop that ends."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, asyncio.CancelledError):
        try:
            return asyncio.current_task().cancelling() > 0
        except RuntimeError:  # no event loop runs
            return False
    return isinstance(error, (GeneratorExit, LimitPassed, RewardError, WatchdogError))


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _brief(value: Any) -> str:
    return " ".join(_values.repr(value).split())


def _said(error: BaseException) -> str:
    try:
        return one_line(error)[:_LONGEST_ERROR]
    except Exception:  # its own `__str__` may raise
        return "(its message cannot be shown)"
