"""The state of an object that knows nothing of checkpoints: HA-DW's belief, an algorithm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger


logger = get_logger(__name__)  # logs on the main process only


@dataclass
class ObjectState:
    """A [`~trl_credit.runs.resumable.Stateful`] part.

    Attributes:
        name, setting: See there.
        part: Has `state_dict()` and `load_state_dict(state)`; the latter may return a sentence for the user.
    """

    name: str
    setting: str
    part: Any

    def state_dict(self, folder: Path) -> dict[str, Any]:
        return self.part.state_dict()

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        if (sentence := self.part.load_state_dict(state)) is not None:
            logger.warning("%s %s", folder, sentence)
