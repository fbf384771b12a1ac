"""What the knobs of credit, and TRL's numbers, may be, and which knobs are ill-defined together."""

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from .credit.steps import STEP_SPLITTERS
from .dead_knobs import TRACES, defaults
from .names import is_own_function, resolve_function
from .segment_config import SEGMENT_CHOICES


if TYPE_CHECKING:
    from .config import CreditConfig


CHOICES = {
    "importance": ("token", "sequence", "sequence_token", *TRACES),
    "selector": ("none", "entropy", "random"),
    "trace_style": ("recent", "both"),
    "loss_weight": ("none", "trace_past", "trace_future"),
    "clip_form": ("surrogate", "ratio"),
    "token_mask": ("none", "probability"),
    "baseline": ("group", "optimal"),
    "difficulty": ("none", "history", "hard", "fixed"),
    "behavior_logps": ("recomputed", "sampler"),
    "length_sort": ("auto", "off"),
    "shared_prefix": ("auto", "on", "off"),
    "skip_without_credit": ("auto", "off"),
    **SEGMENT_CHOICES,
}
# the knobs that take a function of one's own, and the built-in ones that they choose among
FUNCTION_KNOBS = {
    "credit": (),
    **{name: CHOICES[name] for name in ("selector", "token_mask", "baseline", "segmentation")},
    "step_splitter": tuple(STEP_SPLITTERS),
}


class Range(NamedTuple):
    """The numbers that a field may be, and how to say so."""

    holds: Callable[[float], bool]
    words: str
    optional: bool = False  # whether it may be None


_SHARE = Range(lambda x: 0.0 <= x <= 1.0, "in [0, 1]")
_POSITIVE = Range(lambda x: 0.0 < x < math.inf, "positive and finite")
_NOT_NEGATIVE = Range(lambda x: 0.0 <= x < math.inf, "at least 0 and finite")
_FINITE = Range(math.isfinite, "finite")

RANGES = {
    **dict.fromkeys(("trace_lambda", "gamma", "selective_rate", "difficulty_rate_min", "difficulty_threshold"), _SHARE),
    **dict.fromkeys(("probability_threshold", "difficulty_scale", "difficulty_rate"), _POSITIVE),
    "difficulty_window": Range(lambda x: _is_whole(x) and x >= 1, "at least 1 batch, a whole number"),
    "nonfinite_patience": Range(lambda x: _is_whole(x) and x >= 0, "at least 0 updates, a whole number"),
    "log_credit": Range(lambda x: _is_whole(x) and x >= 0, "at least 0 optimizer steps (0: off), a whole number"),
    "log_credit_groups": Range(lambda x: _is_whole(x) and x >= 1, "at least 1 group, a whole number"),
    "reward_timeout": Range(lambda x: x > 0.0, "a positive number of seconds", optional=True),
    **dict.fromkeys(("advantage_floor", "truncated_value"), _FINITE._replace(optional=True)),
    "certain_tolerance": Range(lambda x: 0.0 <= x < 1.0, "in [0, 1)"),
    "process_reward_weight": _FINITE,
    # TRL's own, which it does not look at; the others are in checks.py
    "top_entropy_quantile": _SHARE,
    "epsilon": _NOT_NEGATIVE,  # from 1 on there is no lower bound, as in TRL
    "epsilon_high": Range(lambda x: x >= 0.0, ">= 0", optional=True),
    "delta": Range(lambda x: x > 0.0, "positive", optional=True),
    "beta": _NOT_NEGATIVE,
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos"), _POSITIVE),
    **dict.fromkeys(("entropy_coef", "entropy_coef_min", "entropy_coef_max", "entropy_target"), _FINITE),
}
FLAGS = ("leave_own_out", "loss_weight_confidence", "include_last", "replay_legacy")


def check_ranges(config: "CreditConfig") -> None:
    """Every field by itself.

    Raises:
        ValueError: the message names the field and what it may be.
    """
    for name, setting in config.own_functions().items():
        resolve_function(setting, what=name, known=FUNCTION_KNOBS[name])
    if config.credit is not None and not is_own_function(config.credit):
        raise ValueError(
            f"credit={config.credit!r} must be package.module.function, file.py:function, or None: built-in "
            "algorithms are chosen by their own configuration classes."
        )
    for name, allowed in CHOICES.items():
        value = getattr(config, name)
        if value not in allowed and not (name in FUNCTION_KNOBS and is_own_function(value)):
            own = ", package.module.function or file.py:function" * (name in FUNCTION_KNOBS)
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}{own}, got {value!r}.")
    for name in FLAGS:
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{name} must be True or False, got {getattr(config, name)!r}.")
    for name, allowed in RANGES.items():
        value = getattr(config, name, None)  # a TRL of the range that is supported may lack some of its fields
        if value is None and (allowed.optional or not hasattr(config, name)):
            continue
        if not (_is_number(value) and allowed.holds(value)):
            raise ValueError(f"{name} must be {allowed.words}{' or None' * allowed.optional}, got {value!r}.")
    low_high = config.reward_range
    if not (_are_numbers(low_high) and len(low_high) == 2 and low_high[0] < low_high[1]):
        raise ValueError(f"reward_range must be two finite numbers, the smaller first, got {low_high!r}.")
    names = config.difficulty_reward
    if names is not None and not (
        isinstance(names, (list, tuple)) and names and all(isinstance(x, str) for x in names)
    ):
        raise ValueError(f"difficulty_reward must be a list of names of reward functions or None, got {names!r}.")
    if config.reward_weights is not None and not _are_numbers(config.reward_weights):
        raise ValueError(
            f"reward_weights must be finite numbers, one per reward function, or None (all 1), got "
            f"{config.reward_weights!r}."
        )
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, float) and math.isnan(value):
            default = defaults(type(config)).get(f.name)
            raise ValueError(f"{f.name} must be a number, got nan: leave it out for its default, {default!r}.")


def check_combinations(config: "CreditConfig", *, sequence_of_trl: bool) -> None:
    """Knobs that are ill-defined together. `sequence_of_trl`: TRL's own field asked for `importance="sequence"`.

    Raises:
        ValueError: the message names a field and the fix.
    """
    if config.importance_sampling_level != "token" and config.importance != "sequence":
        raise ValueError(
            f"importance_sampling_level={config.importance_sampling_level!r} with importance={config.importance!r}: "
            "leave importance_sampling_level alone and choose importance='sequence' (GSPO) or 'sequence_token'."
        )
    if config.credit is not None and config.policy_loss != "clip":
        raise ValueError(
            f"credit={config.credit!r} with policy_loss={config.policy_loss!r}: each of them is the whole credit "
            "function. Leave one out; a function may call trl_credit.assignment.policy_iteration itself."
        )
    if config.importance == "sequence":
        for name, off in (("token_mask", "none"), ("loss_weight", "none"), ("top_entropy_quantile", 1.0)):
            if name == "top_entropy_quantile" and sequence_of_trl:
                continue  # TRL's two fields mean together what they mean in TRL
            if getattr(config, name) != off:
                raise ValueError(
                    f"importance='sequence' averages over the response, so {name}={getattr(config, name)!r}, which "
                    f"differs from token to token, would be averaged away: set importance='sequence_token', or "
                    f"{name}={off!r}."
                )
    if config.prompt_average and config.loss_type not in ("dapo", "cispo"):
        raise ValueError(
            f"prompt_average=True with loss_type={config.loss_type!r}: it weighs the rows of a mean over all tokens of "
            "the batch: set loss_type='dapo', or prompt_average=False."
        )
    if config.behavior_logps == "sampler" and not config.use_vllm:
        raise ValueError(
            "behavior_logps='sampler' takes log-probabilities from vLLM: set use_vllm=True, or 'recomputed'."
        )
    if config.selector != "none" and config.importance != "eligible":
        raise ValueError(
            f"selector={config.selector!r} selects the tokens that leave an eligible trace, and importance="
            f"{config.importance!r} has none: set importance='eligible' (S-trace), or selector='none'."
        )
    if config.has_trace and config.loss_type in ("cispo", "vespo", "sapo"):
        raise ValueError(
            f"importance={config.importance!r} with loss_type={config.loss_type!r}: that loss does not take its "
            "gradient through the clipped importance weight, so the trace would be lost or bent: set loss_type to "
            "'dapo', 'grpo', 'bnpo' or 'dr_grpo'."
        )
    if config.importance == "sequence_token" and config.loss_type == "vespo":
        raise ValueError(
            "loss_type='vespo' builds its own sequence weight from the per-token ratios: set importance='token'."
        )
    if config.loss_type == "luspo" and config.importance not in ("token", "sequence"):
        raise ValueError(
            f"loss_type='luspo' with importance={config.importance!r}: it is defined for importance='sequence' (and "
            "does with 'token' what TRL does): set one of them, or loss_type."
        )
    if config.has_trace and config.beta != 0.0 and config.use_bias_correction_kl:
        raise ValueError(
            f"use_bias_correction_kl=True multiplies the KL term by the importance weight, and with importance="
            f"{config.importance!r} the trace would flow through the KL: set use_bias_correction_kl=False."
        )
    if config.clip_form == "ratio":
        _check_clip_form(config)
    if config.multi_objective_aggregation != "sum_then_normalize":
        for name, off in (("baseline", "group"), ("difficulty", "none")):
            if getattr(config, name) != off:
                raise ValueError(
                    f"{name}={getattr(config, name)!r} needs one reward per response, and "
                    f"multi_objective_aggregation={config.multi_objective_aggregation!r} has one per function: set "
                    "multi_objective_aggregation='sum_then_normalize'."
                )


def _check_clip_form(config: "CreditConfig") -> None:
    """Where min(ρ, clip ρ)·A cannot be had from TRL's loss, or another field would contradict it."""
    losses = ("grpo", "bnpo", "dr_grpo", "dapo")
    kl_is_weighted = config.beta != 0.0 and config.use_bias_correction_kl
    for name, is_right, reason, fix in (
        ("importance", config.importance != "sequence", "it has one ratio per response", "'sequence_token'"),
        ("loss_type", config.loss_type in losses, "it takes no minimum over tokens", " or ".join(map(repr, losses))),
        ("delta", config.delta is None, "the ratio is bounded by 1 + ε_high for either sign of A", "None"),
        ("use_bias_correction_kl", not kl_is_weighted, "it multiplies the KL term by a ratio replaced here", "False"),
    ):
        if not is_right:
            value = getattr(config, name)
            raise ValueError(f"{name}={value!r} with clip_form='ratio': {reason}. Set {name}={fix}, or clip_form.")


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _is_whole(x: Any) -> bool:
    return isinstance(x, Integral)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(_is_number(x) and math.isfinite(x) for x in values)
