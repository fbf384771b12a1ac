"""Checks that custom functions return rewards that are numbers and completions that have tokens. Reward functions leave
the run as it was: random numbers, default dtype, working folder, arguments."""

import contextlib
import functools
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import nn

from ..support.digests import function_label
from ..support.errors import one_line
from ..support.functions import errors_named, unique_names
from ..support.shown import shown
from .limits import await_within, call_within
from .signature import Rows, check_signature
from .steps import ResponseReward, StepLedger, read_reward


_LONGEST = 200  # characters of a prompt in a message


class RewardError(ValueError):
    """A result is not a list of rewards. The message is one line with the function, a prompt and the fix."""


def shown_prompt(prompts: Sequence[Any], i: int) -> str:
    """The start of a prompt, for a message."""
    return repr(prompts[i])[:_LONGEST] if i < len(prompts) else "unknown"


def guard_rewards(
    reward_funcs: Any, *, timeout: float | None = None, data: Sequence[Rows] = (), ledger: StepLedger | None = None
) -> Any:
    """Wraps each reward function so that its errors name it and a prompt, and it leaves the run as it was.

    Each function gets copies of the lists. After a call of a function that is not `async`, torch's generators, its
    default dtype and the working folder are as before.

    A function returns an iterable with one entry per response, which is read to its end here: a number, `None` (as in
    TRL: the function does not apply to that response), or rewards along the response, of which TRL gets the total:
    [`~trl_credit.rewards.StepRewards`], pairs of character offset and value, or a value per token. Reward models
    (`nn.Module` or a model id) are passed through; their outputs are checked after they are gathered. Takes and returns
    one function or a list, as the trainer does.

    Args:
        timeout (`float`, *optional*):
            Seconds for a call and its result. The function runs in its own thread, which is abandoned if it takes
            longer; an `async` function runs in TRL's loop. Late results are not accepted. If Python cannot raise the
            error (C code that holds its lock, a blocking call in an `async` function), the process ends, see
            [`~trl_credit.rewards.limits`]. `None` and infinity: no limit.
        data (sequence of [`~trl_credit.rewards.signature.Rows`], *optional*):
            Data that the functions will be given. A signature that cannot take it is refused here.
        ledger ([`~trl_credit.rewards.steps.StepLedger`], *optional*):
            Keeps the rewards along responses.

    Raises:
        ValueError: a function cannot be called as TRL will.
        RewardError: from the wrapped function: its result is not a list of finite numbers or `None`, one per response.
        FunctionRaised: from the wrapped function: it raised an error, or called `sys.exit`.
        LimitPassed: from the wrapped function: it took longer than `timeout`.
    """
    if timeout is not None and timeout > threading.TIMEOUT_MAX:  # infinity too
        timeout = None
    ledger = StepLedger() if ledger is None else ledger
    functions = reward_funcs if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    named = enumerate(zip(functions, unique_names([*map(function_label, functions)]), strict=True))
    guarded = [_guard(function, name, timeout, data, ledger, column) for column, (function, name) in named]
    return guarded if isinstance(reward_funcs, (list, tuple)) else guarded[0]


def guard_rollout(rollout_func: Callable) -> Callable:
    """Wraps a `rollout_func` of TRL so that a completion without tokens raises a `ValueError` that names its prompt."""

    @functools.wraps(rollout_func)
    def guarded(prompts: list, trainer: object) -> dict[str, Any]:
        output = rollout_func(prompts, trainer)
        if 0 in (lengths := [len(ids) for ids in output.get("completion_ids", [])]):
            what = f"an empty completion for prompt {lengths.index(0)} of the batch"
            raise ValueError(f"rollout_func returned {what}: return at least the end-of-sequence token.")
        return output

    return guarded


def _guard(func: Any, name: str, timeout: float | None, data: Sequence[Rows], ledger: StepLedger, column: int) -> Any:
    if func is None or isinstance(func, (str, nn.Module)):
        return func
    for rows in data:
        check_signature(func, name, rows)
    if inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__):

        async def guarded(*args: Any, **kwargs: Any) -> list[float | None]:
            call = _Call(func, name, timeout, kwargs)

            async def run() -> list:
                with forks_end(), call.errors_named():  # in here, since a SystemExit would end TRL's loop
                    return call.read(await func(*args, **call.own_arguments()))

            return ledger.note(column, call.checked(await await_within(timeout, run, message=call.late)))

    else:

        def guarded(*args: Any, **kwargs: Any) -> list[float | None]:
            call = _Call(func, name, timeout, kwargs)

            def run() -> list:
                with forks_end(), call.errors_named():
                    return call.read(func(*args, **call.own_arguments()))

            with isolated():
                return ledger.note(column, call.checked(call_within(timeout, run, message=call.late)))

    guarded = functools.update_wrapper(guarded, func)
    guarded.__name__ = name  # TRL logs by it
    return guarded


class _Call:
    """One call of a reward function, with messages that name the function and a prompt."""

    def __init__(self, func: Callable, name: str, timeout: float | None, kwargs: dict[str, Any]) -> None:
        self.name, self.kwargs, self.responses = name, kwargs, len(kwargs["completions"])
        self._batch = f"{self.responses} responses, the first to prompt {shown_prompt(kwargs.get('prompts', ()), 0)}"
        label = f"reward function {name!r} (on {self._batch})"
        self.errors_named = functools.partial(errors_named, func, label, kept=(RewardError,))
        fix = "the limit is too low. Bound what it does for one response, or raise reward_timeout."
        what = f"reward function {name!r} took longer than reward_timeout={timeout} seconds for {self._batch}"
        self.late = f"{what}: it hangs, or {fix}"

    def own_arguments(self) -> dict[str, Any]:
        """The arguments, with copies of the lists: what one function writes into them is not seen by others."""
        arguments = {name: copied(value) for name, value in self.kwargs.items()}
        logs = {"log_extra": self.kwargs.get("log_extra"), "log_metric": self._log_metric}
        for name in logs.keys() & arguments.keys():
            arguments[name] = shown(f"{name} of reward function {self.name!r}")(logs[name])
        return arguments

    def _log_metric(self, name: str, value: Any) -> None:
        self.kwargs["log_metric"](str(name), float(value))

    def read(self, rewards: Any) -> list:
        """The result as a list. A lazy result is read here, within its time limit, and no further than needed."""
        if isinstance(rewards, (Mapping, Set)) or not isinstance(rewards, Iterable):
            raise self._refused(f"{_brief(rewards)} for {self._batch}: return a list, one per response")
        if len(listed := list(itertools.islice(rewards, self.responses + 1))) != self.responses:
            count = len(listed) if len(listed) < self.responses else f"more than {self.responses}"
            raise self._refused(f"{count} rewards for {self._batch}: return one per response")
        return listed

    def checked(self, rewards: list) -> list[ResponseReward]:
        """The rewards, each a number, `None`, or rewards along the response."""
        ids, checked = self.kwargs.get("completion_ids"), []
        for i, reward in enumerate(rewards):
            try:
                checked.append(read_reward(reward, tokens=None if ids is None else len(ids[i])))
            except (TypeError, ValueError) as error:
                prompt = shown_prompt(self.kwargs.get("prompts", ()), i)
                where = f"{_brief(reward)} for response {i} of the batch, to prompt {prompt} ({error})"
                fix = "return a finite number, StepRewards, or None where the function does not apply"
                raise self._refused(f"{where}: {fix}") from error
        return checked

    def _refused(self, what: str) -> RewardError:
        return RewardError(f"reward function {self.name!r} returned {what}.")


def _brief(value: Any) -> str:
    """The value and its type, on one line."""
    return f"{one_line(repr(value))[:80]} (a {type(value).__name__})"


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restores torch's generators, its default dtype, its gradient mode and the working folder at the end.

    The generators are those of the CPU and of the current CUDA device. A function that draws from them sees the run's
    random state, which moves on with the run's own draws only.
    """
    dtype, folder = torch.get_default_dtype(), os.getcwd()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices), torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(dtype)
        os.chdir(folder)


@contextlib.contextmanager
def forks_end() -> Iterator[None]:
    """Ends a process that was forked inside, with exit code 0. It would go on as a second copy of the run."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


def copied(value: Any) -> Any:
    """A copy of the lists, dicts, arrays and tensors in a value. Other objects, such as images, are shared."""
    if isinstance(value, list):
        # token ids: a loop over them would be slow
        return value.copy() if value and isinstance(value[0], (int, float)) else [copied(x) for x in value]
    if isinstance(value, dict):
        return {key: copied(x) for key, x in value.items()}
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value
