"""The pages of `--help`: a short one with the flags that people set, and `--help all` with every flag."""

import re
import shutil
import textwrap
from argparse import SUPPRESS, Action
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from types import SimpleNamespace

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig

from ..config.knobs import RUN, Knob, is_active
from ..data import DataArguments
from ..presets import PRESETS


# the first flags under `RUN`; our knobs of a run follow
_RUN_FLAGS = (
    "algo config output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size "
    "gradient_accumulation_steps steps_per_generation num_generations max_completion_length temperature beta "
    "use_vllm seed logging_steps report_to run_name save_strategy save_steps save_total_limit save_only_model "
    "resume_from_checkpoint push_to_hub hub_model_id hub_private_repo hub_strategy hub_revision hub_token"
).split()
_MODEL_FLAGS = "model_name_or_path dtype use_peft".split()  # those of TRL that are on the short page too
_REWARDS = "reward reward_weights multi_objective_aggregation scale_rewards".split()
_OF_CLASS = {
    DataArguments: "Data",
    ModelConfig: "Model",
    TrainingArguments: "transformers' (TrainingArguments)",
    GRPOConfig: "TRL's (GRPOConfig)",
}
_HEADINGS = (
    *(RUN, "Model", "Data", "Rewards", "Credit", "Steps and turns", "Groups and prompts", "Segments", "Rollouts"),
    *("Evaluation", "TRL's (GRPOConfig)", "transformers' (TrainingArguments)"),
)
_ABOUT = """\
Every flag can also be a line `name: value` in a YAML file: --config a.yaml b.yaml. Later files override
earlier ones, and flags override files. --no_NAME turns off a flag that is on by default. N is an integer, X any number.
In brackets: the defaults of {algo} with the model {model_name_or_path}."""
_COLUMN = 34  # where texts begin
_KINDS = {"int": "N", "float": "X", "string_to_bool": "true|false"}
_SENTENCE = re.compile(r"(?<!App\.)(?<!Alg\.)(?<!Sec\.)(?<!Eq\.)(?<=\.) ")
# how TRL and transformers speak of a default, which a preset or the embedded model may replace
_CLAIM = re.compile(r"^(?!.*\b(?:[Ii]f|[Uu]nless|when|where)\b).*\b[Dd]efault(?:s to| of)\b")


def page(prog: str, epilog: str, actions: Sequence[Action], knobs: Mapping[str, Knob], *, full: bool) -> str:
    """What `--help` prints: the flags under their headings.

    Args:
        prog, epilog (`str`):
            The program, and text at the end.
        actions (sequence of `Action`):
            All flags.
        knobs (mapping of `str` to [`~trl_credit.config.knobs.Knob`]):
            The declarations of our fields of the configuration.
        full (`bool`):
            Whether every flag is shown with its whole text. Else a sentence of each of our flags that have an effect
            with the defaults, and of those of TRL that most runs set.
    """
    default = {action.dest: action.default for action in actions}
    parts = [f"usage: {prog} [--flag value …]", _filled(_ABOUT.format(**default))]
    idle: list[str] = []
    if not full:
        rows = [_row(f"  {name}", preset.summary, 16) for name, preset in PRESETS.items()]
        parts.append("\n".join(["Algorithms:", *rows]))
        idle = [name for name, knob in knobs.items() if not is_active(SimpleNamespace(**default), knob.acts)]
    of_trl = {f.name for of in (GRPOConfig, ModelConfig) for f in fields(of)}
    hidden = set() if full else {*idle, *of_trl.difference(_RUN_FLAGS, _MODEL_FLAGS, knobs)}
    order = [*_RUN_FLAGS, *knobs]
    shown = sorted(actions, key=lambda action: order.index(action.dest) if action.dest in order else len(order))
    for title in _HEADINGS:
        group = [a for a in shown if a.dest not in hidden and _heading(a.dest, knobs) == title]
        rows = [_row(_invocation(a), _text(a, knobs.get(a.dest), full), _COLUMN) for a in group]
        parts += ["\n".join([f"{title}:", *rows])] * bool(rows)
    if not full:
        parts.append(_filled(f"No effect with these defaults: {', '.join(idle)}."))
        parts.append(f"--help all describes all {len(actions)} flags, including those of TRL and transformers.")
    return "\n\n".join([*parts, epilog]).rstrip() + "\n"


def _heading(name: str, knobs: Mapping[str, Knob]) -> str:
    if name in _RUN_FLAGS:
        return RUN
    if name in knobs:
        return knobs[name].heading
    if name in _REWARDS:
        return "Rewards"
    of = next((of for of in _OF_CLASS if name in of.__dataclass_fields__), None)
    return _OF_CLASS[of] if of is not None else "Evaluation" if name.startswith("evaluat") else "Credit"


def _invocation(action: Action) -> str:
    """A flag and the kind of its value."""
    kind = "CHOICE" if action.choices else _KINDS.get(getattr(action.type, "__name__", ""), "TEXT")
    value = str(action.metavar or kind)
    value = {"?": f"[{value}]", "+": f"{value} …"}.get(str(action.nargs), value)
    return f"  {action.option_strings[0]} {value}"


def _text(action: Action, knob: Knob | None, full: bool) -> str:
    """The text of a flag, its choices and its default."""
    sentences = _SENTENCE.split((action.help or "").replace("%%", "%").replace(" (default)", ""))
    names = [*(action.choices or ()), *(knob.values.names if knob and knob.values else ())]
    if full:
        text = " ".join(sentence for sentence in sentences if not _CLAIM.search(sentence))
        names = [] if str(next(iter(names), "")) in text else names
    else:
        text = "One of these." if action.dest == "algo" else sentences[0]
        text = text.partition(": ")[0] if names else text
    text = f"{text.rstrip('.:')}: {', '.join(map(str, names))}." if names else text
    if action.default is SUPPRESS or (action.default is None and not full):
        return text
    value = action.default.value if isinstance(action.default, Enum) else action.default
    return f"{text} [{' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}]"


def _filled(text: str, **layout: str) -> str:
    width = max(60, min(shutil.get_terminal_size().columns, 200)) - 2
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False, **layout)


def _row(flag: str, text: str, column: int) -> str:
    """A flag, and its text from a column on."""
    filled = _filled(text, initial_indent=" " * column, subsequent_indent=" " * column)
    return f"{flag}\n{filled}" if len(flag) > column - 2 else flag.ljust(column) + filled[column:]
