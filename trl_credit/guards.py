"""Checks on what users' functions return: rewards that are numbers, completions that have tokens."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


def guard_rewards(reward_funcs: Any) -> Any:
    """Wraps each reward function so that NaN or ±inf raises a `ValueError` that names it and the response.

    `None` stays what it is in TRL: this function has nothing to say on that response. Reward models (`nn.Module` or a
    model id) are passed through; their outputs are checked after they are gathered. Takes and returns one function or
    a list, as the trainer does.
    """
    if isinstance(reward_funcs, (list, tuple)):
        return [_guard(func) for func in reward_funcs]
    return _guard(reward_funcs)


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


def _guard(func: Any) -> Any:
    if func is None or isinstance(func, (str, nn.Module)):
        return func
    name = func_name(func)
    is_async = inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)
    if is_async:

        async def guarded(*args: Any, **kwargs: Any) -> Sequence[float | None]:
            try:
                rewards = await func(*args, **kwargs)
            except Exception as error:
                raise _named(error, name, kwargs) from error
            return _checked(rewards, name, kwargs)
    else:

        def guarded(*args: Any, **kwargs: Any) -> Sequence[float | None]:
            try:
                rewards = func(*args, **kwargs)
            except Exception as error:
                raise _named(error, name, kwargs) from error
            return _checked(rewards, name, kwargs)

    guarded = functools.update_wrapper(guarded, func)
    guarded.__name__ = name  # a partial or a callable object has none, and TRL logs by it
    return guarded


def func_name(func: Callable) -> str:
    """`__name__` of a function, of what a partial wraps, or of the class of a callable object."""
    if isinstance(func, functools.partial):
        return func_name(func.func)
    return func.__name__ if inspect.isroutine(func) or inspect.isclass(func) else type(func).__name__


def _checked(rewards: Sequence[float | None], name: str, kwargs: dict[str, Any]) -> Sequence[float | None]:
    for i, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(
                f"reward function {name!r} returned {reward} for response {i} of the batch, to prompt "
                f"{_shown(kwargs, i)}: return a finite number, or None where the function does not apply."
            )
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
