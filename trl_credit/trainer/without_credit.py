"""Micro-batches in which no token has an advantage: their gradient is exactly 0, so that they need no pass."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerCallback

from ..config import CreditConfig
from .batches import loss_mask
from .metrics import wide
from .nonfinite import updates_in_backward
from .padding import is_random


MARK = "without_credit"  # the entry of a micro-batch that says whether no process has an advantage in it


class WithoutCredit(TrainerCallback):
    """Which micro-batches of a run are left out, by `skip_without_credit`, its loss, model and processes.

    Args:
        trainer ([`CreditTrainer`]):
            With its model.

    Attributes:
        applies: Whether any may be: where a token without an advantage has no gradient, whatever else.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.applies = trainer.args.skip_without_credit == "auto" and not _has_other_gradients(trainer)
        # the last pass of a window is the one in which the gradients of processes meet
        self._gradients_meet = trainer.num_processes > 1 or trainer.is_fsdp_enabled
        self._reached: list[torch.nn.Parameter] = []
        self._computed = self._skipped = 0  # of the accumulation window that runs

    def on_step_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._computed = self._skipped = 0  # a window before it need not have come to its end

    def credited(self, batches: Sequence[dict[str, Any]]) -> torch.Tensor:
        """Which rows of micro-batches, one after the other, have a token in the loss with an advantage other than 0."""
        has = [((wide(batch["advantages"]) != 0) & loss_mask(batch).bool()).any(-1) for batch in batches]
        return torch.cat(has)

    def mark(self, batches: Sequence[dict[str, Any]]) -> None:
        """Notes in each micro-batch of a generation batch whether it needs a pass. Collective."""
        if not self.applies:
            return
        credited = self.credited(batches).view(len(batches), -1).any(-1)
        everywhere = self._trainer.sum_over_processes(credited.int()).tolist()
        for batch, n in zip(batches, everywhere, strict=True):
            batch[MARK] = n == 0

    def leaves_out(self, batch: dict[str, Any], *, is_logged: bool) -> bool:
        """Whether no pass is made for a micro-batch of the training loss; the same on all processes.

        Args:
            is_logged (`bool`):
                Whether its rows are to be in a rollout log, which holds whole groups.
        """
        skips = batch.get(MARK, False) and not is_logged
        if skips and self._trainer.accelerator.sync_gradients:  # the last one of its window
            # a window without any pass needs to know which parameters passes reach
            skips = bool(self._reached or self._moved()) if self._computed == 0 else not self._gradients_meet
        self._skipped += skips
        self._computed += not skips
        return skips

    def close(self) -> float | None:
        """Ends a window; returns the share of its micro-batches that were left out, `None` where none can be.

        Where all were, the parameters have a gradient of 0, not none: momentum and weight decay go on, as with TRL.
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
        """Parameters of which the optimizer has a state: after a resume, those that passes reached before it."""
        state = getattr(self._trainer.optimizer, "state", {})
        return [p for p in self._trainer.model.parameters() if state.get(p)]


def _has_other_gradients(trainer: Any) -> bool:
    """Whether a token without an advantage may have a gradient, or a pass does something else that would be missed."""
    args: CreditConfig = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    text = model.config.get_text_config()
    return (
        args.beta != 0.0
        or getattr(args, "entropy_coef", 0.0) != 0.0
        or getattr(args, "use_adaptive_entropy", False)
        # experts and encoders of images, which not every pass reaches
        or hasattr(text, "output_router_logits")
        or text is not model.config
        # what others wrote may make credit out of nothing
        or bool({"credit", "selector"} & args.own_functions().keys())
        or trainer.credit_method is not None
        or any(_is_of_others(getattr(type(trainer), name)) for name in ("compute_loss", "_compute_loss"))
        or args.policy_loss != "clip"
        or (args.advantage_floor is not None and args.advantage_floor > 0.0)
        # a scaler counts updates, and DeepSpeed passes
        or trainer.accelerator.scaler is not None
        or updates_in_backward(trainer)
        # numbers that a pass draws
        or args.selector == "random"
        or args.neftune_noise_alpha is not None
        or is_random(model)
    )


def _is_of_others(method: Any) -> bool:
    return method.__module__.partition(".")[0] not in ("trl", "trl_credit")
