"""What the card reads of a trainer."""

from collections.abc import Callable, Sized
from typing import Any, Protocol

from torch import nn
from transformers import TrainerState

from ..config import CreditConfig
from ..presets import Preset


class CardTrainer(Protocol):
    """A trainer after training, such as [`CreditTrainer`].

    Attributes:
        args, state, model, train_dataset, reward_funcs, hub_model_id: As in `GRPOTrainer`.
        preset: The preset of the trainer's class, if it is a named one.
        algorithm_name: The algorithm's name as people write it: "S-trace".
        credit_method: The `credit` of a subclass, or `None`.
        _tag_names: Tags on the Hub, as in TRL.
    """

    args: CreditConfig
    state: TrainerState
    model: nn.Module
    train_dataset: Sized | Any
    reward_funcs: list[Callable | nn.Module]
    hub_model_id: str | None
    preset: Preset | None
    _tag_names: list[str]

    @property
    def algorithm_name(self) -> str: ...

    @property
    def credit_method(self) -> Callable | None: ...

    def changes_of_run(self) -> list[str]:
        """A sentence for each change of the settings between a checkpoint and a resume."""
        ...
