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
        columns = [i for i, name in enumerate(names) if len(names) == 1 or name.rstrip("_0123456789") in _ACCURACY]
        if len(columns) != 1:
            settings = {"difficulty": "none", "prompt_sampler": "data", "groups": "keep", "dull_kl": "keep"}
            reader = next(name for name, off in settings.items() if getattr(config, name) != off)
            what = f"it is not clear which of the reward functions {known} measures the share of correct responses"
            fix = "set difficulty_reward to its name (or several)"
            fix += ", or group_signal='reward'" * (config.reads_signal and config.group_signal == "correct")
            raise ValueError(f"{reader}={getattr(config, reader)!r}: {what}: {fix}.")
    else:
        spelled = {name.removesuffix("_reward"): i for i, name in enumerate(names)}
        spelled |= {name: i for i, name in enumerate(names)}
        if unknown := [name for name in config.difficulty_reward if name not in spelled]:
            raise ValueError(f"difficulty_reward={unknown[0]!r} is not one of the reward functions {known}: name one.")
        columns = list(dict.fromkeys(spelled[name] for name in config.difficulty_reward))
    is_total = len(columns) == len(weights) and all(weight == 1.0 for weight in weights)
    reads_range = config.difficulty != "none" or config.prompt_sampler == "difficulty"
    if config.process_reward_weight != 0.0 and reads_range and not is_total:
        raise ValueError(
            f"reward_range={config.reward_range!r} would be the range of difficulty_reward "
            f"({', '.join(names[i] for i in columns)}) and, for process_reward_weight, of the total reward ({known}), "
            "which differ: set difficulty='none' or process_reward_weight=0, or train on one reward of weight 1."
        )
    return columns
