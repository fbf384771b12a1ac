"""What a card says of a run's method: the settings of credit and loss as rows of a table, custom functions by file and
digest, and the papers."""

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any, NamedTuple

from ..config import CreditConfig, active_part, defaults
from ..config.algorithm import class_of, settings_of
from ..config.knobs import knobs_of
from ..presets import PAPERS, PRESETS, Preset
from ..support.digests import function_label
from ..support.functions import is_object_name, short_name, source_of
from .recipe import PRIVATE, TRL_FIELDS, build


# the fields in the table, by what they act on; knobs that are not named here are shown under the advantage
PARTS = {
    "weight W": "credit importance selector selective_rate leave_own_out trace_lambda gamma trace_style trace_unit "
    "behavior_logps",
    "advantage A": "rollouts baseline scale_rewards",
    "batch": "groups group_signal max_copies max_refills prompt_sampler prompt_floor retire_above",
    "mask M": "token_mask probability_threshold top_entropy_quantile mask_truncated_completions",
    "loss": "loss_type prompt_average turn_average policy_loss clip_form epsilon epsilon_high beta dull_kl loss_weight "
    "loss_weight_confidence num_iterations tree_rows replay_iterations replay_cap released_code",
}
EIGHTY_TWENTY = PAPERS["2506.01939"]


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


def describe_credit(args: CreditConfig) -> list[Setting]:
    """The fields of `PARTS` and the knobs of credit, without those that have no effect beside the others.

    Names and docstrings of custom functions are not escaped.
    """
    preset = preset_of(args)
    published = args if preset is None else build(preset.config, output_dir=args.output_dir, report_to="none")
    own = defaults(type(args))  # of a knob that only a subclass of the preset's configuration declares
    functions = custom_functions(args)
    rows = []
    for part, names in _names(args).items():
        for name in names:
            value, default = getattr(args, name), getattr(published, name, own.get(name))
            if value is not None or default is not None or name in functions:
                shown = functions.get(name, _shown(value))
                rows.append(Setting(part, name, shown, _shown(default) if value != default else ""))
    return rows


def _names(args: CreditConfig) -> dict[str, list[str]]:
    """The fields that have an effect, by part."""
    knobs = knobs_of(type(args))
    named = {f.name: getattr(args, f.name) for f in fields(args) if f.name in TRL_FIELDS or f.name in knobs}
    active = active_part(named, vars(args), knobs)
    names = {part: [name for name in listed.split() if name in active] for part, listed in PARTS.items()}
    of_credit = [setting.name for setting in settings_of(class_of(args.credit)) if setting.name in active]
    names["weight W"][1:1] = of_credit  # of custom credit, beside its name
    elsewhere = {*of_credit, *TRL_FIELDS, *PRIVATE, *" ".join(PARTS.values()).split()}
    names["advantage A"] += [x for x in active if x not in elsewhere and (x not in knobs or knobs[x].changes_loss)]
    return names


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def custom_functions(args: CreditConfig) -> dict[str, str]:
    """The custom functions that compute credit, by their setting: "half of mine.py, SHA-256 1a2b…: “docstring”". The
    digest is that of the file as it was loaded, or of the source of a function without file."""
    texts = {}
    for setting, name in args.custom_functions().items():
        # "f" of "folder/file.py:f", of "package.module.f" and of "f@1a2b3c4d", which was given as an object
        function = short_name(name).rpartition(":")[2].rpartition(".")[2]
        source, doc = source_of(name, what=setting), _first_line(args.custom_function(setting))
        file = source.file.name if source.file is not None else "no file"
        digest = "no source" if source.digest is None else f"SHA-256 {source.digest}"
        texts[setting] = f"{function} of {file}, {digest}" + (f": “{doc}”" if doc else "")
    return texts


def function_comments(args: CreditConfig, *, rewards: Collection[str] = ()) -> str:
    """A YAML comment for each custom function, and one for each that the recipe cannot hold.

    `rewards` are the names of rewards that no setting names.
    """
    names, fix = args.custom_functions(), "put it into a file, and name it file.py:function"
    lines = []
    for setting, text in [*custom_functions(args).items(), *(("reward", name) for name in rewards)]:
        # a name may hold line ends and characters that YAML does not take
        shown = "".join(c if c.isprintable() else "?" for c in text.partition(": “")[0])
        lines.append(f"# {setting}: {shown}\n")
        if setting not in names or is_object_name(names[setting]):
            lines.append(f"# {setting} was given as an object, which no recipe can hold: {fix}\n")
    return "".join(lines)


def _first_line(function: Callable) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    line = (inspect.getdoc(function) or "").partition("\n")[0]
    return "" if line.startswith(f"{function_label(function)}(") else line  # what @dataclass writes


def papers_of(args: CreditConfig) -> list[dict[str, str]]:
    """Title, arXiv id and BibTeX of every paper that a run uses.

    The order is: the preset's paper if only its own class uses it, methods that assign credit, the 80/20 mask of TRL,
    losses, and GRPO.
    """
    own = {preset.config: preset.paper for preset in PRESETS.values() if preset.uses is None}
    credit, losses = [], []
    for preset in [preset for preset in PRESETS.values() if preset.uses is not None and preset.uses(args)]:
        has_knobs = any(f not in fields(CreditConfig) and f.name not in TRL_FIELDS for f in fields(preset.config))
        (credit if has_knobs else losses).append(preset.paper)
    of_class = [own[base] for base in type(args).__mro__ if base in own]
    of_trl = [EIGHTY_TWENTY] if args.top_entropy_quantile < 1.0 else []
    cited = [*of_class, *credit, *of_trl, *reversed(losses)]  # GRPO is the first loss of the registry
    return list({paper["id"]: paper for paper in cited}.values())
