"""How many threads torch computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


SMALL = 10_000_000  # parameters: below, threads wait for each other longer than they compute
_CHOSEN_BY_TORCH = torch.get_num_threads()


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """Context manager in which a model on the CPU with fewer than `SMALL` parameters runs on one thread.

    On a busy machine each of its many small operations would otherwise wait until every thread gets a core. Nothing is
    changed where the number of threads was set: by `OMP_NUM_THREADS` or `MKL_NUM_THREADS`, or by a call of
    `torch.set_num_threads` with another number than torch takes by itself.
    """
    before = torch.get_num_threads()
    is_set = before != _CHOSEN_BY_TORCH or "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    parameters = list(model.parameters())
    on_cpu = all(p.device.type == "cpu" for p in parameters)
    if is_set or not on_cpu or sum(p.numel() for p in parameters) >= SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
