"""Micro-batches in which no token has an advantage: their gradient is exactly 0, so they need no pass."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loss import keys
from ..loss.batch import loss_mask
from ..loss.metrics import wide
from ..loss.nonfinite import updates_in_backward
from .model_traits import custom_credit, has_entropy_bonus, has_experts, is_random


class ZeroAdvantageSkips:
    """Which micro-batches of a run are skipped, by `skip_zero_advantage`, its loss, model and processes.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            It has its model.

    Attributes:
        applies: Whether any may be skipped: only where a token without an advantage has no gradient at all.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.applies = trainer.args.skip_zero_advantage == "auto" and not _has_other_gradients(trainer)
        # processes exchange their gradients in the last pass of a window
        self._gradients_meet = trainer.processes.count > 1 or trainer.is_fsdp_enabled
        self._reached: list[torch.nn.Parameter] = []
        self._computed = self._skipped = 0  # micro-batches of the current accumulation window

    def credited(self, batches: Sequence[dict[str, Any]]) -> torch.Tensor:
        """Rows of micro-batches, one after the other, with an advantage other than 0 at a token of the loss: bool."""
        return torch.cat([((wide(x[keys.ADVANTAGES]) != 0) & loss_mask(x).bool()).any(-1) for x in batches])

    def mark(self, batches: Sequence[dict[str, Any]]) -> None:
        """Marks the micro-batches of a generation batch that need no pass. Collective."""
        if not self.applies or self._trainer.has_custom_loss:  # it may be set on the instance later
            return
        credited = self.credited(batches).view(len(batches), -1).any(-1)
        for batch, n in zip(batches, self._trainer.processes.sum(credited.int()).tolist(), strict=True):
            batch[keys.ZERO_ADVANTAGE] = n == 0

    def skips(self, batch: dict[str, Any], *, is_logged: bool) -> bool:
        """Whether a micro-batch of training needs no pass; the same on all processes. `is_logged`: whether the rollout
        log needs its rows."""
        skips = batch.get(keys.ZERO_ADVANTAGE, False) and not is_logged
        if skips and self._trainer.accelerator.sync_gradients:  # the last micro-batch of its window
            # in a window without any pass, `close_step` needs the parameters that passes reach
            skips = bool(self._reached or self._moved()) if self._computed == 0 else not self._gradients_meet
        self._skipped += skips
        self._computed += not skips
        return skips

    def close_step(self) -> float | None:
        """Ends an optimizer step. Returns the share of its micro-batches that were skipped; `None` if none can be.

        If all were skipped, parameters get a gradient of 0 instead of `None`: momentum and weight decay act as in TRL.
        """
        computed, skipped = self._computed, self._skipped
        self._computed = self._skipped = 0
        if not self.applies or computed + skipped == 0:
            return None
        if computed == 0:
            for p in self._reached or self._moved():
                p.grad = torch.zeros_like(p)
        else:
            self._reached = self._reached or [p for p in self._trainer.model.parameters() if p.grad is not None]
        return skipped / (computed + skipped)

    def _moved(self) -> list[torch.nn.Parameter]:
        """Parameters with an optimizer state: after a resume, those that passes reached before it."""
        state = getattr(self._trainer.optimizer, "state", {})
        return [p for p in self._trainer.model.parameters() if state.get(p)]


def _has_other_gradients(trainer: Any) -> bool:
    """Whether a token without an advantage may have a gradient, or a pass has another effect."""
    args = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    return (
        args.beta != 0.0
        or has_entropy_bonus(args)
        # not every pass reaches all experts, or the encoder of images
        or has_experts(model)
        or model.config.get_text_config() is not model.config
        # a custom function may give credit where the advantage is 0
        or bool(custom_credit(trainer))
        or trainer.has_custom_loss
        or args.policy_loss != "clip"
        or args.td_upper_bound
        or (args.advantage_floor is not None and args.advantage_floor > 0.0)
        # a gradient scaler counts updates, and DeepSpeed counts passes
        or trainer.accelerator.scaler is not None
        or updates_in_backward(trainer)
        # a pass draws random numbers
        or args.neftune_noise_alpha is not None
        or is_random(model)
    )
