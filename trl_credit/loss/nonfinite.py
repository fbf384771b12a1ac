"""Skips updates whose loss or gradient is not finite."""

from collections import deque

import torch
from torch.distributed.tensor import DTensor
from transformers import Trainer


WINDOW = 100  # updates
# A rare bad batch costs nothing. If every fourth update is skipped, the learning rate's schedule runs ahead of what is
# learned, and the cause is a setting, not a batch.
SHARE = 0.25


class NonFinite:
    """Skips updates whose loss or gradient is not finite, and stops the run after too many of them.

    Too many means more than `nonfinite_patience` in a row, or more than `nonfinite_patience` and more than a share of
    `SHARE` among the last `WINDOW` updates. A resume resets the count.

    Args:
        trainer (`Trainer`):
            The trainer whose updates are skipped. Its `args` are a [`CreditConfig`].
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self.patience = trainer, trainer.args.nonfinite_patience
        self.in_a_row = 0
        self._skips_current = False
        self._skipped: deque[bool] = deque(maxlen=WINDOW - 1)  # before the current update

    @property
    def looks_before_backward(self) -> bool:
        """Whether losses must be looked at before the backward pass of the current micro-batch, and not only at the end
        of the step: where that pass updates, or a gradient scaler skips single micro-batches.

        DeepSpeed accumulates, and updates in the last pass of a window, also of one that the end of an epoch cuts.
        """
        trainer = self._trainer
        if trainer.is_deepspeed_enabled:
            return trainer.accelerator.sync_gradients
        return updates_in_backward(trainer) or trainer.accelerator.scaler is not None

    @property
    def skips_batches(self) -> bool:
        """Whether all updates of a generation batch can be skipped: accumulation windows must fit into the batch, and a
        gradient scaler needs gradients."""
        args = self._trainer.args
        fits = args.steps_per_generation % args.gradient_accumulation_steps == 0
        return fits and self._trainer.accelerator.scaler is None

    def record_bad_loss(self) -> None:
        """Records a loss that is not finite. All processes know of it before the backward pass.

        Raises:
            FloatingPointError: too many updates were skipped, or DeepSpeed accumulates gradients, where skipping one
                micro-batch would move the boundary between two updates.
        """
        accumulates = self._trainer.args.gradient_accumulation_steps > 1
        self._record("loss", at_once=self._trainer.is_deepspeed_enabled and accumulates)

    def gradient_flags(self) -> list[torch.Tensor]:
        """Whether the gradient of this process is not finite, and whether any of it is not 0: two 0-dimensional
        booleans, or none where the norm is unknown: with a gradient scaler, in DeepSpeed's first steps, and where the
        backward pass updates. Does not wait for the device."""
        trainer = self._trainer
        if trainer.accelerator.scaler is not None:
            return []
        if trainer.is_deepspeed_enabled:  # the update is already made
            norm = trainer.model_wrapped.get_global_grad_norm()
        elif updates_in_backward(trainer):  # which leaves no gradients
            norm = None
        else:
            gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm([x.to_local() if isinstance(x, DTensor) else x for x in gradients])
        return [] if norm is None else [~torch.isfinite(norm := torch.as_tensor(norm)), norm != 0]

    def close_update(self, *, loss: bool, gradient: bool) -> bool:
        """Ends an update. Every process skips it if any process found a loss or gradient that is not finite.

        Returns:
            `bool`: whether the update, or a part of it, was skipped.

        Raises:
            FloatingPointError: too many updates were skipped, or DeepSpeed has already made the update.
        """
        if loss or gradient:
            self._record("loss" if loss else "gradient", at_once=self._trainer.is_deepspeed_enabled)
            for p in self._trainer.model.parameters():
                p.grad = None  # optimizers skip it, also its momentum and weight decay
        skipped, self._skips_current = self._skips_current, False
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        self._skipped.append(skipped)
        return skipped

    def _record(self, what: str, *, at_once: bool) -> None:
        self._skips_current = True
        among = sum(self._skipped)
        if at_once or self.in_a_row >= self.patience or among >= max(SHARE * WINDOW, self.patience):
            before = f"{among} of the {len(self._skipped)} updates before this one were skipped"
            fix = "resume from it with a lower learning_rate or max_grad_norm, a larger beta, or bf16 instead of fp16."
            raise FloatingPointError(f"the {what} is not finite, and {before}. The last checkpoint is intact: {fix}")


def updates_in_backward(trainer: Trainer) -> bool:
    """Whether the optimizer updates inside the backward pass, where an update cannot be undone."""
    return trainer.is_deepspeed_enabled or any(kind in trainer.args.optim for kind in ("lomo", "layerwise"))
