"""The state of an object that knows nothing of checkpoints: HA-DW's belief, an algorithm."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class ObjectState:
    """A [`~trl_credit.runs.resumable.Stateful`] part.

    Attributes:
        name, setting: See there.
        part: Has `state_dict()` and `load_state_dict(state)`.

    Raises:
        ValueError: the state holds what JSON lacks.
    """

    name: str
    setting: str
    part: Any

    def __post_init__(self) -> None:
        try:
            json.dumps(self.part.state_dict())
        except (TypeError, ValueError) as error:  # now, and not at the first checkpoint
            raise ValueError(f"{self.setting}: its state_dict() must return JSON types: {error}.") from error

    def state_dict(self, folder: Path) -> dict[str, Any]:
        return self.part.state_dict()

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        self.part.load_state_dict(state)
