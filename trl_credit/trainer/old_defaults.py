"""Defaults that are others than in trl_credit 0.1, whose checkpoints do not say who their run is: one line for each.

A later release compares the settings themselves, see `identity.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..config import CreditConfig
from ..dead_knobs import defaults, live_part


class OldDefault(NamedTuple):
    """A line.

    Attributes:
        knob: The field.
        value: With which a run is today what it was in 0.1 by default.
        applies: Reads a configuration; whether that was the default for it. Where the knob does nothing is left out
            anyway.
        at: Today's value that means something else than it did, where that is not the default.
    """

    knob: str
    value: Any
    applies: Callable[[CreditConfig], bool] = lambda config: True
    at: Any = None


def _is(config: CreditConfig, *presets: str) -> bool:
    modules = {f"trl_credit.algorithms.{preset}" for preset in presets}
    return any(base.__module__ in modules for base in type(config).__mro__)


def _kl_was_weighted(config: CreditConfig) -> bool:
    return config.beta != 0.0 and _is(config, "grpo", "dapo", "dr_grpo", "gspo", "ha_dw", "opo")


OLD_DEFAULTS = (
    OldDefault("loss_type", "dapo", lambda config: _is(config, "spo_chain")),  # and VinePPO's, which is one
    OldDefault("prompt_average", False, lambda config: _is(config, "spo_tree")),
    OldDefault("use_bias_correction_kl", True, _kl_was_weighted),
    OldDefault("process_reward_best_of", 4),
    OldDefault("policy_loss", "policy_iteration_code", at="policy_iteration"),
    OldDefault("mask_normalizer", "code, its KL divided as the policy term", at="code"),
    OldDefault("difficulty_rate", 1.0),
    OldDefault("difficulty_rate_min", 0.01),
)


def changed_since_0_1(config: CreditConfig) -> dict[str, list[Any]]:
    """Knobs that do something in a run and are at a default that 0.1 did not have → its default, and the run's value.

    What was set to another value than today's default was chosen, and is left out.
    """
    today = defaults(type(config))
    lines = [line for line in OLD_DEFAULTS if line.applies(config)]
    alive = live_part({line.knob: line.value for line in lines}, vars(config))
    pairs = {knob: [before, getattr(config, knob)] for knob, before in alive.items()}
    of_today = {line.knob: today[line.knob] if line.at is None else line.at for line in lines}
    return {knob: pair for knob, pair in pairs.items() if pair[1] == of_today[knob] != pair[0]}
