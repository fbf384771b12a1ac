"""Which knobs do something beside which others. What does nothing and was set all the same is refused."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple


TRACES = ("eligible", "lambda_trace")

# knobs that act beside any others, or whose combinations with others are refused elsewhere, by name
ALWAYS = (
    "credit",
    "importance",
    "selector",
    "loss_weight",
    "token_mask",
    "baseline",
    "advantage_floor",
    "difficulty",
    "behavior_logps",
    "reward_timeout",
    "nonfinite_patience",
    "length_sort",
    "shared_prefix",
    "skip_without_credit",
    "log_credit",
    "overwrite_output_dir",
    "allow_changed",
    "rollouts",
    "policy_loss",
    "prompt_average",
    "whiten_advantages",
)


class Life(NamedTuple):
    """When some knobs do something.

    Attributes:
        knobs: Their names.
        alive: Reads a configuration; whether they do.
        because: The fields that it reads, for the message.
        reason: Why they do not, beside these fields.
        fix: What gives them something to do.
    """

    knobs: tuple[str, ...]
    alive: Callable[[Any], bool]
    because: tuple[str, ...]
    reason: str
    fix: str


def _own(config: Any) -> bool:
    """Whether credit is a function of one's own, which may read any knob of W."""
    return config.credit is not None


def _chain(config: Any, *segmentations: str) -> bool:
    return config.rollouts == "chain" and (not segmentations or config.segmentation in segmentations)


LIVES = (
    Life(
        ("trace_lambda", "gamma"),
        lambda c: c.importance in TRACES or c.loss_weight != "none" or _own(c),
        ("importance", "loss_weight"),
        "make no trace",
        "set importance='eligible' or 'lambda_trace', or a loss_weight",
    ),
    Life(
        ("trace_style",),
        lambda c: c.importance == "lambda_trace" or c.loss_weight != "none" or _own(c),
        ("importance", "loss_weight"),
        "make no trace of GRPO-λ",
        "set importance='lambda_trace', or a loss_weight",
    ),
    Life(
        ("loss_weight_confidence",),
        lambda c: c.loss_weight != "none" or _own(c),
        ("loss_weight",),
        "weighs no token's loss",
        "set loss_weight='trace_past'",
    ),
    Life(
        ("clip_form",),
        lambda c: c.policy_loss == "clip",
        ("policy_loss",),
        "clips no ratio",
        "set policy_loss='clip'",
    ),
    Life(
        ("selective_rate", "leave_own_out"),
        lambda c: c.selector != "none" or _own(c),
        ("selector",),
        "selects nothing",
        "set importance='eligible' and selector='entropy' (S-trace) or 'random'",
    ),
    Life(
        ("probability_threshold",),
        lambda c: c.token_mask != "none" or _chain(c, "cutpoints") or _own(c),
        ("token_mask", "rollouts", "segmentation"),
        "ask for no token's probability",
        "set token_mask='probability', or rollouts='chain' with segmentation='cutpoints'",
    ),
    Life(
        ("mask_normalizer",),
        lambda c: c.token_mask != "none",
        ("token_mask",),
        "masks nothing",
        "set token_mask='probability'",
    ),
    Life(
        ("difficulty_scale", "difficulty_reward"),
        lambda c: c.difficulty != "none",
        ("difficulty",),
        "weighs nothing",
        "set difficulty='history', 'hard' or 'fixed'",
    ),
    Life(
        ("difficulty_window",),
        lambda c: c.difficulty in ("history", "hard"),
        ("difficulty",),
        "does not look back",
        "set difficulty='history' or 'hard'",
    ),
    Life(
        ("difficulty_rate", "difficulty_rate_min"),
        lambda c: c.difficulty == "history",
        ("difficulty",),
        "moves no belief by steps",
        "set difficulty='history'",
    ),
    Life(
        ("difficulty_threshold",),
        lambda c: c.difficulty == "fixed",
        ("difficulty",),
        "has no fixed belief",
        "set difficulty='fixed'",
    ),
    Life(
        ("reward_range",),
        lambda c: c.difficulty != "none" or c.process_reward_weight != 0.0,
        ("difficulty", "process_reward_weight"),
        "take rewards as they are",
        "set difficulty, or process_reward_weight with rollouts",
    ),
    Life(
        (
            "segmentation",
            "include_last",
            "max_valued_steps",
            "rollouts_per_state",
            "initial_value",
            "certain_tolerance",
        ),
        _chain,
        ("rollouts",),
        "cuts no response into segments",
        "set rollouts='chain'",
    ),
    Life(
        ("cutpoint_interval",),
        lambda c: _chain(c, "cutpoints") and c.num_segments is None,
        ("rollouts", "segmentation", "num_segments"),
        "count no cutpoints per segment",
        "set rollouts='chain' with segmentation='cutpoints' and num_segments=None",
    ),
    Life(
        ("num_segments",),
        lambda c: _chain(c, "cutpoints", "fixed_count"),
        ("rollouts", "segmentation"),
        "do not ask for a number of segments",
        "set rollouts='chain' with segmentation='cutpoints' or 'fixed_count'",
    ),
    Life(
        ("segment_length",),
        lambda c: _chain(c, "fixed_length"),
        ("rollouts", "segmentation"),
        "make no segments of one length",
        "set rollouts='chain' with segmentation='fixed_length' (of a tree: tree_segment_length)",
    ),
    Life(
        ("step_splitter",),
        lambda c: _chain(c, "steps"),
        ("rollouts", "segmentation"),
        "split nothing into steps",
        "set rollouts='chain' with segmentation='steps'",
    ),
    Life(
        ("truncated_value", "rollout_batch_size", "process_reward_weight"),
        lambda c: c.rollouts != "none",
        ("rollouts",),
        "has no rollouts",
        "set rollouts='chain' or 'tree'",
    ),
    Life(
        ("tree_branching", "segment_advantage", "tree_rows", "replay_iterations", "replay_cap", "replay_legacy"),
        lambda c: c.rollouts == "tree",
        ("rollouts",),
        "grows no trees",
        "set rollouts='tree'",
    ),
    Life(
        ("tree_segment_length",),
        lambda c: c.rollouts == "tree" and len(c.tree_branching) > 1,
        ("rollouts", "tree_branching"),
        "make no tree with inner levels",
        "set rollouts='tree' with two levels or more in tree_branching",
    ),
    Life(
        ("log_credit_groups",),
        lambda c: c.log_credit > 0,
        ("log_credit",),
        "writes no rollouts",
        "set log_credit, to every how many optimizer steps",
    ),
    Life(
        ("process_reward_best_of", "process_reward_form"),
        lambda c: c.rollouts != "none" and c.process_reward_weight != 0.0,
        ("rollouts", "process_reward_weight"),
        "add no process reward",
        "set process_reward_weight, with rollouts='chain' or 'tree'",
    ),
)
_BY_KNOB = {knob: life for life in LIVES for knob in life.knobs}


def check_dead_knobs(config: Any) -> None:
    """Refuses a knob that was set and does nothing beside the others.

    Set is what is neither the default of the configuration's class nor that of a class above it.

    Raises:
        ValueError: the message names the knob, what leaves it without effect, and the fix.
    """
    for name, life in _BY_KNOB.items():
        if not life.alive(config) and not _is_default(config, name):
            beside = " and ".join(f"{field}={getattr(config, field)!r}" for field in life.because)
            raise ValueError(
                f"{name}={getattr(config, name)!r} does nothing, since {beside} {life.reason}: {life.fix}, or leave "
                f"{name} out."
            )


def live_part(settings: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `settings` that do something where all fields, these too, are as `beside` has them."""
    config = SimpleNamespace(**beside)
    return {name: x for name, x in settings.items() if name not in _BY_KNOB or _BY_KNOB[name].alive(config)}


def defaults(config_class: type) -> dict[str, Any]:
    """The default of every field of a dataclass that has one."""
    found = {}
    for f in fields(config_class):
        if f.default is not MISSING:
            found[f.name] = f.default
        elif f.default_factory is not MISSING:
            found[f.name] = f.default_factory()
    return found


def _is_default(config: Any, name: str) -> bool:
    value = _plain(getattr(config, name))
    bases = (base for base in type(config).__mro__ if is_dataclass(base))
    return any(_plain(own[name]) == value for base in bases if name in (own := defaults(base)))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
