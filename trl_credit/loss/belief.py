"""HA-DW's belief by the knobs, and the reward functions that say what is correct, for it and for groups."""

from collections.abc import Sequence

from ..config import CreditConfig
from ..credit.difficulty import DifficultyBelief


# names of reward functions that measure accuracy
_ACCURACY = ("accuracy", "accuracy_reward", "knights_and_knaves_reward", "demo_reward")


def belief_of(config: CreditConfig) -> DifficultyBelief | None:
    """A new belief by the knobs of `config`; `None` without difficulty weights."""
    if config.difficulty == "none":
        return None
    knobs = {name: getattr(config, f"difficulty_{name}") for name in ("window", "rate", "rate_min", "threshold")}
    return DifficultyBelief(config.difficulty, **knobs, includes_current=config.uses_released_code("ha_dw_anchor"))


def correct_columns(config: CreditConfig, names: Sequence[str], *, weights: Sequence[float]) -> list[int]:
    """Columns of the reward functions that measure correctness; none if nothing reads it.

    Args:
        config ([`CreditConfig`]):
            With `difficulty_reward`. Its names may omit a final `_reward`.
        names (sequence of `str`):
            Names of the trainer's reward functions.
        weights (sequence of `float`):
            Their weights in the total reward.

    Raises:
        ValueError: a name matches no function; no name is given and several functions are possible; or
            two different rewards would share one `reward_range`.
    """
    if not config.reads_correct:
        return []
    known = ", ".join(names)
    if config.difficulty_reward is None:
        columns = [i for i, name in enumerate(names) if len(names) == 1 or name.rstrip("_0123456789") in _ACCURACY]
        if len(columns) != 1:
            what = f"it is not clear which of the reward functions {known} measures the share of correct responses"
            fix = "set difficulty_reward to its name (or several), or group_signal='reward' where groups alone read it"
            raise ValueError(f"difficulty_reward=None: {what}: {fix}.")
    else:
        places = {name.removesuffix("_reward"): i for i, name in enumerate(names)}
        places |= {name: i for i, name in enumerate(names)}
        if unknown := [name for name in config.difficulty_reward if name not in places]:
            raise ValueError(f"difficulty_reward={unknown[0]!r} is not one of the reward functions {known}: name one.")
        columns = list(dict.fromkeys(places[name] for name in config.difficulty_reward))
    is_total = len(columns) == len(weights) and all(weight == 1.0 for weight in weights)
    reads_range = config.difficulty != "none" or config.prompt_sampler == "difficulty" or config.reads_success
    if config.process_reward_weight != 0.0 and reads_range and not is_total:
        what = "cannot be the range of difficulty_reward and, for process_reward_weight, of the total reward"
        fix = "set difficulty='none' or process_reward_weight=0, or train on one reward of weight 1"
        raise ValueError(f"reward_range={config.reward_range!r} {what}: {fix}.")
    return columns
