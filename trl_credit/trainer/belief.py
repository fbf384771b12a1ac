"""The belief of the difficulty weights, from a configuration and in checkpoints."""

from pathlib import Path
from typing import Any

from accelerate.logging import get_logger

from ..config import CreditConfig
from ..credit.difficulty import DifficultyBelief
from .checkpoints import STATE_FILE


logger = get_logger(__name__)


def make_belief(config: CreditConfig) -> DifficultyBelief | None:
    """That of a new run; `None` without difficulty weights."""
    if config.difficulty == "none":
        return None
    return DifficultyBelief(
        mode=config.difficulty,
        window=config.difficulty_window,
        rate=config.difficulty_rate,
        rate_min=config.difficulty_rate_min,
        threshold=config.difficulty_threshold,
    )


def belief_setting(config: CreditConfig) -> dict[str, str]:
    """The part of a state that a belief is, and the setting that has it kept; nothing without difficulty weights."""
    return {} if config.difficulty == "none" else {"difficulty": f"difficulty={config.difficulty!r}"}


def belief_state(belief: DifficultyBelief | None) -> dict[str, dict[str, Any]]:
    """What is kept of a difficulty belief, by part; nothing where there is none."""
    return {} if belief is None else {"difficulty": belief.state_dict()}


def load_belief(belief: DifficultyBelief | None, parts: dict[str, dict[str, Any]], folder: str | Path) -> None:
    """Restores a difficulty belief, if there is one, from the parts of a state, and says if it is moved otherwise now.

    Raises:
        ValueError: they are of another belief.
    """
    if belief is None:
        return
    try:
        before = belief.load_state_dict(parts["difficulty"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"cannot resume the difficulty belief from {Path(folder) / STATE_FILE} ({error}): resume from a "
            "checkpoint that was written with the same difficulty_* settings."
        ) from error
    if belief.mode == "history" and before != (belief.rate, belief.rate_min):
        logger.warning(
            "up to %s the difficulty belief moved by difficulty_rate %g and difficulty_rate_min %g%s, and from here by "
            "%g and %g: set the old ones to go on as before",
            folder,
            *before,
            " (the defaults of trl_credit 0.1, which kept no record of them)" * (parts["difficulty"]["version"] == 1),
            belief.rate,
            belief.rate_min,
        )
