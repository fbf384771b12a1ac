"""Peak memory of one call, on any device."""

import gc
from collections.abc import Callable

import torch


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes of tensors allocated at one time within `call`, counted from its start by torch's profiler."""
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak
