"""The reward functions that say what is correct, for HA-DW's belief and for groups."""

from collections.abc import Sequence

from ..config import CreditConfig


# names of reward functions that measure accuracy
_ACCURACY = ("accuracy", "accuracy_reward", "knights_and_knaves_reward", "demo_reward")


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
        found = [i for i, name in enumerate(names) if len(names) == 1 or name.rstrip("_0123456789") in _ACCURACY]
        if len(found) != 1:
            what = f"{_reader(config)}: it is not clear which of the reward functions {known} measures"
            fix = "set difficulty_reward to its name (or several)"
            fix += ", or group_signal='reward'" * (config.reads_signal and config.group_signal == "correct")
            raise ValueError(f"{what} the share of correct responses: {fix}.")
    else:
        found = [_column(name, names) for name in dict.fromkeys(config.difficulty_reward)]
    is_total = len(found) == len(weights) and all(weight == 1.0 for weight in weights)
    reads_range = config.difficulty != "none" or config.prompt_sampler == "difficulty"
    if config.process_reward_weight != 0.0 and reads_range and not is_total:
        raise ValueError(
            f"reward_range={config.reward_range!r} would be the range of difficulty_reward "
            f"({', '.join(names[i] for i in found)}) and, for process_reward_weight, of the total reward ({known}), "
            "which differ: set difficulty='none' or process_reward_weight=0, or train on one reward of weight 1."
        )
    return found


def _reader(config: CreditConfig) -> str:
    """The setting that needs to know what is correct."""
    names = [name for name, off in (("difficulty", "none"), ("prompt_sampler", "data")) if getattr(config, name) != off]
    name = (*names, "groups" if config.groups != "keep" else "dull_kl")[0]
    return f"{name}={getattr(config, name)!r}"


def _column(name: str, names: Sequence[str]) -> int:
    for spelled in (name, f"{name}_reward"):
        if spelled in names:
            return names.index(spelled)
    raise ValueError(f"difficulty_reward={name!r} is not one of the reward functions {', '.join(names)}: name one.")
