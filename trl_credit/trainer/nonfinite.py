"""Updates that are left out: their loss or gradient is not finite, or there is nothing to learn from."""

from collections import deque
from typing import Any

import torch

from .batches import local


WINDOW = 100  # updates
# A quarter: one bad batch in a while costs nothing, but where every fourth update is left out, the schedule of the
# learning rate runs ahead of what is learned, and the cause is the setting rather than the batch.
SHARE = 0.25


class NonFinite:
    """Counts updates that were left out because loss or gradient was not finite, and stops after too many: in a row, or
    among the last `WINDOW`, where finite ones lie between them. Counts anew after a resume.

    Args:
        patience (`int`):
            Updates in a row that may be left out. Of the last `WINDOW`, a share of `SHARE` may be, or as many as this
            where they are more.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.in_a_row = 0
        self._now = False
        self._left_out: deque[bool] = deque(maxlen=WINDOW - 1)  # and the one that runs

    def found(self, what: str, *, at_once: bool = False) -> None:
        """Notes one in the update that runs.

        Raises:
            FloatingPointError: it is one too many, or `at_once`.
        """
        self._now = True
        among = sum(self._left_out)
        if at_once:
            before = ""
        elif self.in_a_row >= self.patience:
            before = f", and {self.in_a_row} updates before this one were left out"
        elif among >= max(SHARE * WINDOW, self.patience):
            before = (
                f", and {among} of the {len(self._left_out)} updates before this one were left out, "
                f"{among / len(self._left_out):.0%}"
            )
        else:
            return
        raise FloatingPointError(
            f"the {what} is not finite{before}. "
            "Nothing of the last checkpoint is lost: resume from it with a lower learning_rate or max_grad_norm, "
            "a larger beta, or bf16 in the place of fp16."
        )

    def close_update(self) -> bool:
        """Ends an update; returns whether it was left out, or part of it."""
        skipped, self._now = self._now, False
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        self._left_out.append(skipped)
        return skipped


def can_drop_gradients(trainer: Any) -> bool:
    """Whether an update can still be left out once its gradients are there, so that nothing need be known before.

    A gradient scaler counts what is not finite itself.
    """
    return not updates_in_backward(trainer) and trainer.accelerator.scaler is None


def updates_in_backward(trainer: Any) -> bool:
    """Whether the optimizer updates inside of a backward pass, which cannot be taken back after it."""
    return trainer.is_deepspeed_enabled or any(kind in trainer.args.optim for kind in ("lomo", "layerwise"))


def gradient_flags(trainer: Any) -> list[torch.Tensor]:
    """Whether the gradient of this process is not finite: one boolean without dimensions, or none where that is not
    for us to see. Does not wait for the device."""
    if trainer.accelerator.scaler is not None:
        return []  # which does that itself
    if trainer.is_deepspeed_enabled:  # has updated already
        norm = trainer.model_wrapped.get_global_grad_norm()
        return [~torch.isfinite(torch.as_tensor(0.0 if norm is None else norm))]
    gradients = [local(p.grad) for p in trainer.model.parameters() if p.grad is not None]
    return [~torch.isfinite(torch.nn.utils.get_total_norm(gradients))]


def leave_out_nonfinite(trainer: Any, count: NonFinite, *, of_loss: bool, of_gradient: bool) -> None:
    """Leaves an update out, on every process, if on any a loss or the gradient was not finite.

    Raises:
        FloatingPointError: it is one too many, or cannot be left out.
    """
    if not of_loss and not of_gradient:
        return
    count.found("loss" if of_loss else "gradient", at_once=trainer.is_deepspeed_enabled)
    for p in trainer.model.parameters():
        p.grad = None  # which optimizers pass over, with momentum and weight decay


def accumulates_in_deepspeed(trainer: Any) -> bool:
    """Whether a micro-batch cannot be left out, since that would move the border between two updates."""
    return trainer.is_deepspeed_enabled and trainer.args.gradient_accumulation_steps > 1


def can_be_left_out(trainer: Any) -> bool:
    """Whether all updates of a generation batch can: not half an accumulation window, nor with a gradient scaler, which
    wants gradients."""
    whole = trainer.args.steps_per_generation % trainer.args.gradient_accumulation_steps == 0
    return whole and trainer.accelerator.scaler is None
