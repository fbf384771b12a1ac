"""The belief of the difficulty weights, from a configuration and in checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger

from ..config import CreditConfig
from ..credit.difficulty import DifficultyBelief
from .checkpoints import STATE_FILE


logger = get_logger(__name__)


# reward functions that are the accuracy wherever they are, by name
_ACCURACY = ("accuracy", "accuracy_reward", "knights_and_knaves_reward", "demo_reward")


def correct_columns(config: CreditConfig, names: Sequence[str], *, weights: Sequence[float]) -> list[int]:
    """Which of the reward functions `names` say what is correct; none without difficulty weights.

    Args:
        config ([`CreditConfig`]):
            With `difficulty_reward`, of which a name may leave out a last `_reward`.
        names (sequence of `str`):
            Of a trainer's reward functions.
        weights (sequence of `float`):
            Theirs in the total reward.

    Raises:
        ValueError: a name is that of no function or of several; without a name it is not clear which one is meant; or
            `reward_range` would have to be two ranges.
    """
    if config.difficulty == "none":
        return []
    known = ", ".join(names)
    if config.difficulty_reward is None:
        found = [0] if len(names) == 1 else [i for i, name in enumerate(names) if name in _ACCURACY]
        if len(found) != 1:
            raise ValueError(
                f"difficulty={config.difficulty!r} needs the share of correct responses, and it is not clear which of "
                f"the reward functions {known} says so: set difficulty_reward to its name (of several: their sum)."
            )
    else:
        found = [_column(name, names) for name in dict.fromkeys(config.difficulty_reward)]
    is_total = len(found) == len(names) and all(weight == 1.0 for weight in weights)
    if config.process_reward_weight != 0.0 and not is_total:
        raise ValueError(
            f"reward_range={config.reward_range!r} would be the range of difficulty_reward "
            f"({', '.join(names[i] for i in found)}) and, for process_reward_weight, of the total reward ({known}), "
            "which differ: set difficulty='none' or process_reward_weight=0, or train on one reward of weight 1."
        )
    return found


def _column(name: str, names: Sequence[str]) -> int:
    exact = [i for i, known in enumerate(names) if known == name]
    found = exact or [i for i, known in enumerate(names) if known == f"{name}_reward"]
    if len(found) != 1:
        problem = "is not one of the reward functions" if not found else f"names {len(found)} of the reward functions"
        raise ValueError(f"difficulty_reward={name!r} {problem} {', '.join(names)}: give the name of one of them.")
    return found[0]


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


def load_belief(
    belief: DifficultyBelief | None,
    parts: dict[str, dict[str, Any]],
    folder: str | Path,
    *,
    correct: Sequence[str] = (),
) -> None:
    """Restores a difficulty belief, if there is one, from the parts of a state, and says if it is moved otherwise now.

    `correct`: names of the reward functions that it is moved by, where they are not the total reward.

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
    of_0_1 = parts["difficulty"]["version"] == 1  # what its defaults were is in old_defaults.py
    if correct and of_0_1:
        logger.warning(
            "up to %s difficulty came from the total reward, as in trl_credit 0.1, and from here from %s alone, of "
            "which reward_range is the range now: belief and replayed rows may be off for some batches",
            folder,
            ", ".join(correct),
        )
    if belief.mode == "history" and not of_0_1 and before != (belief.rate, belief.rate_min):
        logger.warning(
            "up to %s the difficulty belief moved by difficulty_rate %g and difficulty_rate_min %g, and from here by "
            "%g and %g: set the old ones to go on as before",
            folder,
            *before,
            belief.rate,
            belief.rate_min,
        )
