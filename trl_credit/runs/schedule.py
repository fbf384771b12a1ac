"""What another number of steps does to the learning rate of a resumed run."""

import math
from typing import Any


def schedule_jump(scheduler: Any, *, planned: int, now: int) -> str | None:
    """How the learning rate jumps where a run resumes, in words; `None` if it does not.

    Its schedule is a function of the step and of the number of steps.

    Args:
        scheduler:
            Made for `now` steps, with the state of the checkpoint.
        planned, now (`int`):
            Optimizer steps that the run of the checkpoint was to make, and those of this one.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)  # Accelerate wraps it
    if not hasattr(scheduler, "lr_lambdas") or not (peak := scheduler.base_lrs[0]):
        return None  # it does not depend on the number of steps, or DeepSpeed has one of its own
    before, after = scheduler.get_last_lr()[0] / peak, scheduler.lr_lambdas[0](scheduler.last_epoch)
    if math.isclose(before, after, rel_tol=1e-6, abs_tol=1e-9):
        return None
    jump = f"the learning rate jumps from {before:.3g} to {after:.3g} of its peak"
    # with the same number of steps the user has allowed another schedule
    return jump if planned == now else f"{jump}, since its schedule ends at step {now}, no longer at {planned}"
