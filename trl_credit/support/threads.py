"""How many threads torch computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


SMALL = 10_000_000  # parameters: below, threads wait for each other longer than they compute


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """Context manager in which a model on the CPU with fewer than `SMALL` parameters runs on one thread.

    On a busy machine each of its many small operations would otherwise wait until every thread gets a core. Nothing is
    changed where `OMP_NUM_THREADS` or `MKL_NUM_THREADS` sets the number of threads.
    """
    before, parameters = torch.get_num_threads(), list(model.parameters())
    is_small = sum(p.numel() for p in parameters) < SMALL and all(p.device.type == "cpu" for p in parameters)
    if is_small and not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
