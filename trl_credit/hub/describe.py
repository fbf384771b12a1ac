"""The settings of a run's credit and loss, as rows of the card's table."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from ..config import KNOBS, CreditConfig, active_part
from ..presets import PRESETS, Preset
from .functions import custom_functions
from .settings import PRIVATE, TRL_FIELDS, build


# the fields in the table, by what they act on; knobs that are not named here are shown under the advantage
PARTS = {
    "weight W": (
        *("credit", "importance", "selector", "selective_rate", "leave_own_out", "trace_lambda", "gamma"),
        *("trace_style", "behavior_logps"),
    ),
    "advantage A": ("rollouts", "baseline", "scale_rewards"),
    "mask M": (
        *("token_mask", "probability_threshold"),
        *("top_entropy_quantile", "mask_truncated_completions"),
    ),
    "loss": (
        *("loss_type", "prompt_average", "policy_loss", "clip_form", "epsilon", "epsilon_high", "beta"),
        *("loss_weight", "loss_weight_confidence", "num_iterations"),
        *("tree_rows", "replay_iterations", "replay_cap", "released_code"),
    ),
}


class Setting(NamedTuple):
    """A row of the table: a field, what it acts on, its value, and the preset's value if that is another one."""

    part: str
    name: str
    value: str
    published: str = ""


def preset_of(args: CreditConfig) -> Preset | None:
    """The preset whose configuration class `args` has, or the nearest base class of it."""
    by_config = {preset.config: preset for preset in PRESETS.values()}
    return next((by_config[base] for base in type(args).__mro__ if base in by_config), None)


def describe_credit(args: CreditConfig, method: Callable | None = None) -> list[Setting]:
    """The fields of `PARTS` and the knobs of credit, without those that have no effect beside the others.

    `method` is the `credit` of a trainer's subclass. Names and docstrings of custom functions are not escaped.
    """
    preset = preset_of(args)
    published = args if preset is None else build(preset.config, output_dir=args.output_dir, report_to="none")
    functions: dict[str, list[str]] = {}
    for function in custom_functions(args, method=method):
        text = f"{function.text}: “{function.doc}”" if function.doc else function.text
        functions.setdefault(function.setting, []).append(text)
    rows = []
    for part, names in _names(args).items():
        for name in names:
            value, default = getattr(args, name), getattr(published, name)
            if value is not None or default is not None or name in functions:
                shown = "; ".join(functions.get(name, [_text(value)]))
                rows.append(Setting(part, name, shown, _text(default) if value != default else ""))
    return rows


def _names(args: CreditConfig) -> dict[str, list[str]]:
    active = active_part({f.name: getattr(args, f.name) for f in fields(CreditConfig)}, vars(args))
    if args.rollouts != "none" or args.baseline != "group":
        del active["scale_rewards"]
    found = {part: [name for name in names if name in active] for part, names in PARTS.items()}
    without_effect = [name for name, knob in KNOBS.items() if not knob.changes_loss]
    elsewhere = {*TRL_FIELDS, *without_effect, *PRIVATE}.union(*PARTS.values())
    found["advantage A"] += [name for name in active if name not in elsewhere]
    return found


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
