"""The interface of this package to the trainer, and the passes that are TRL's own."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from ..config import CreditConfig
from ..loss.loss_pass import LossPass
from ..support.processes import Processes


class PassTrainer(Protocol):
    """The parts of a trainer that decide about its passes."""

    args: CreditConfig
    accelerator: Accelerator
    model: torch.nn.Module
    model_wrapped: Any
    optimizer: Any
    processes: Processes
    findings: dict[str, Any]
    credit_method: Callable | None
    has_custom_loss: bool
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool

    def add_callback(self, callback: TrainerCallback) -> None: ...


class PassTransform(Protocol):
    """Changes which rows forward passes compute, and no gradient of an optimizer step."""

    def arrange(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The micro-batches of a generation batch, as TRL cut it, in the form that passes compute. Collective."""

    def skips(self, batch: dict[str, Any], *, is_logged: bool) -> bool:
        """Whether a micro-batch of training needs no pass; the same on all processes. `is_logged`: whether the rollout
        log needs its rows."""

    def run(self, model: Any, args: tuple, kwargs: dict[str, Any], loss_pass: LossPass | None) -> tuple:
        """TRL's forward pass with these arguments; `loss_pass` where it is that of a loss. Returns what TRL's does."""

    def close_step(self) -> float | None:
        """Ends an optimizer step. Returns the share of its micro-batches that were skipped; `None` if none can be."""


class PlainPasses:
    """TRL's own passes: a [`PassTransform`] that changes nothing.

    Args:
        forward (`Callable`):
            TRL's forward pass.
    """

    def __init__(self, forward: Callable[..., tuple]) -> None:
        self._forward = forward

    def arrange(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return batches

    def skips(self, batch: dict[str, Any], *, is_logged: bool) -> bool:
        return False

    def run(self, model: Any, args: tuple, kwargs: dict[str, Any], loss_pass: LossPass | None) -> tuple:
        return self._forward(model, *args, **kwargs)

    def close_step(self) -> float | None:
        return None
