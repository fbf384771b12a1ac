"""The parts of a trainer that the model card reads."""

from typing import Protocol

from transformers import TrainerState

from ..presets import Preset
from ..runs.identity import IdentifiedTrainer


class CardTrainer(IdentifiedTrainer, Protocol):
    """A trainer after training, such as [`CreditTrainer`].

    Attributes:
        state, hub_model_id: As in `GRPOTrainer`.
        preset: The preset of the trainer's class, if it is a named one.
        _tag_names: Tags on the Hub, as in TRL.
    """

    state: TrainerState
    hub_model_id: str | None
    preset: Preset | None
    _tag_names: list[str]

    def changes_of_run(self) -> list[str]:
        """A sentence for each change of the settings between a checkpoint and a resume."""
        ...
