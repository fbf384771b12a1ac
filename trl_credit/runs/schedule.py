"""The learning rate of a resumed run: one that was allowed to change, and what another number of steps does to it."""

import math
from typing import Any


# settings that the optimizer's state in a checkpoint brings back
RESTORED = ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


def set_learning_rate(optimizer: Any, scheduler: Any, peak: float) -> None:
    """Changes the peak of the learning rate after the states of optimizer and scheduler were loaded, which hold the old
    one.

    Raises:
        ValueError: the scheduler is not one of transformers that has a peak.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)  # Accelerate wraps it
    if not hasattr(scheduler, "lr_lambdas"):
        what = f"allow_changed learning_rate: the state of {type(scheduler).__name__} brings the old one back"
        raise ValueError(f"{what}: use its settings, or start a new run with the checkpoint as the model.")
    scheduler.base_lrs = [peak for _ in scheduler.base_lrs]
    scheduler._last_lr = [peak * share(scheduler.last_epoch) for share in scheduler.lr_lambdas]
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["initial_lr"], group["lr"] = peak, rate


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
    ends = f"its schedule ends at step {now}, and ended at {planned}"
    return f"the learning rate jumps from {before:.3g} to {after:.3g} of its peak: {ends}"
