"""How many threads torch computes with."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import nn


SMALL = 10_000_000  # parameters: below, threads wait for each other longer than they compute
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """Context manager in which a model on the CPU with fewer than `SMALL` parameters runs on one thread.

    On a busy machine each of its many small operations would otherwise wait until every thread gets a core. Nothing is
    changed where the number of threads was set: by `OMP_NUM_THREADS` or `MKL_NUM_THREADS`, or by a call of
    `torch.set_num_threads` with another number than torch takes by itself.
    """
    before = torch.get_num_threads()
    if not (_is_small(model) and _is_torchs_own(before)):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_small(model: nn.Module) -> bool:
    parameters = list(model.parameters())
    return all(p.device.type == "cpu" for p in parameters) and sum(p.numel() for p in parameters) < SMALL


def _is_torchs_own(threads: int) -> bool:
    """Whether torch chose this number: the cores that the process may use, or their hardware threads."""
    if any(name in os.environ for name in _VARIABLES):
        return False
    every = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else every
    return threads in (usable, usable * (psutil.cpu_count(logical=False) or every) // every)
