"""Checks on what users' functions return: rewards that are numbers, completions that have tokens."""

import asyncio
import functools
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..names import function_label


def guard_rewards(reward_funcs: Any, *, timeout: float | None = None) -> Any:
    """Wraps each reward function so that whatever it does wrong raises an error that names it and a prompt.

    `ValueError` for NaN, ±inf or a number of rewards other than that of responses, `RuntimeError` from what it raises,
    `TimeoutError` if it takes longer than `timeout` seconds for a batch (then it runs in a thread of its own, which is
    left behind). `None` stays what it is in TRL: this function has nothing to say on that response. Reward models
    (`nn.Module` or a model id) are passed through; their outputs are checked after they are gathered. Takes and returns
    one function or a list, as the trainer does.
    """
    if isinstance(reward_funcs, (list, tuple)):
        return [_guard(func, timeout) for func in reward_funcs]
    return _guard(reward_funcs, timeout)


def guard_rollout(rollout_func: Callable) -> Callable:
    """Wraps a `rollout_func` of TRL so that a completion without a token raises a `ValueError` that says which."""

    @functools.wraps(rollout_func)
    def guarded(prompts: list, trainer: Any) -> dict[str, Any]:
        output = rollout_func(prompts, trainer)
        for i, ids in enumerate(output.get("completion_ids", [])):
            if len(ids) == 0:
                raise ValueError(
                    f"rollout_func returned an empty completion for prompt {i} of the batch: return at least the "
                    "end-of-sequence token."
                )
        return output

    return guarded


def _guard(func: Any, timeout: float | None) -> Any:
    if func is None or isinstance(func, (str, nn.Module)):
        return func
    name = function_label(func)
    is_async = inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)
    if is_async:

        async def guarded(*args: Any, **kwargs: Any) -> Sequence[float | None]:
            try:
                rewards = await asyncio.wait_for(func(*args, **kwargs), timeout)
            except TimeoutError as error:
                raise _late(name, timeout, kwargs) from error
            except Exception as error:
                raise _named(error, name, kwargs) from error
            return _checked(rewards, name, kwargs)
    else:

        def guarded(*args: Any, **kwargs: Any) -> Sequence[float | None]:
            try:
                rewards = func(*args, **kwargs) if timeout is None else _within(timeout, name, func, args, kwargs)
            except _Late:
                raise
            except Exception as error:
                raise _named(error, name, kwargs) from error
            return _checked(rewards, name, kwargs)

    guarded = functools.update_wrapper(guarded, func)
    guarded.__name__ = name  # a partial or a callable object has none, and TRL logs by it
    return guarded


def _checked(rewards: Sequence[float | None], name: str, kwargs: dict[str, Any]) -> Sequence[float | None]:
    rewards, n = list(rewards), len(kwargs.get("completions", rewards))
    if len(rewards) != n:
        raise ValueError(
            f"reward function {name!r} returned {len(rewards)} rewards for {n} responses, the first to prompt "
            f"{_shown(kwargs, 0)}: return one per response."
        )
    for i, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(
                f"reward function {name!r} returned {reward} for response {i} of the batch, to prompt "
                f"{_shown(kwargs, i)}: return a finite number, or None where the function does not apply."
            )
    return rewards


class _Late(TimeoutError):
    pass


def _late(name: str, timeout: float | None, kwargs: dict[str, Any]) -> _Late:
    return _Late(
        f"reward function {name!r} took longer than reward_timeout={timeout} seconds for "
        f"{len(kwargs.get('completions', ()))} responses, the first to prompt {_shown(kwargs, 0)}: it hangs, or the "
        "limit is too low."
    )


def _within(timeout: float, name: str, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append((func(*args, **kwargs), None))
        except Exception as error:
            outcome.append((None, error))

    # a daemon, so that a function that never returns does not keep the process alive
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise _late(name, timeout, kwargs)
    rewards, error = outcome[0]
    if error is not None:
        raise error
    return rewards


def _named(error: Exception, name: str, kwargs: dict[str, Any]) -> RuntimeError:
    n = len(kwargs.get("completions", ()))
    return RuntimeError(
        f"reward function {name!r} raised {type(error).__name__}: {error}, on {n} responses, the first to prompt "
        f"{_shown(kwargs, 0)}. Nothing was trained on them."
    )


def _shown(kwargs: dict[str, Any], i: int) -> str:
    prompts = kwargs.get("prompts", ())
    return repr(prompts[i])[:200] if i < len(prompts) else "unknown"
