"""Keeps a run as it was while reward functions run: random numbers, default dtype, working folder, arguments."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


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
