"""The pages of `--help`: a short one with the flags that people set, and `--help all` with every flag."""

import re
import shutil
import textwrap
from argparse import SUPPRESS, Action
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import SimpleNamespace

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig

from ..config.knobs import RUN, Knob, is_active
from ..data import DataArguments
from ..presets import PRESETS


# flags under `RUN`, in the order of `--help all`; our knobs of a run follow
_RUN_ORDER = (
    "algo config output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size "
    "gradient_accumulation_steps steps_per_generation num_generations max_completion_length temperature beta "
    "use_vllm seed logging_steps report_to run_name save_strategy save_steps save_total_limit save_only_model "
    "resume_from_checkpoint push_to_hub hub_model_id hub_private_repo hub_strategy hub_revision hub_token"
).split()
_REWARDS = "reward reward_weights multi_objective_aggregation scale_rewards".split()
_TRL, _TRANSFORMERS = "TRL's (GRPOConfig)", "transformers' (TrainingArguments)"
_CLASSES = {TrainingArguments: _TRANSFORMERS, GRPOConfig: _TRL, DataArguments: "Data", ModelConfig: "Model"}
_OURS = (
    *("Model", "Data", "Rewards", "Credit", "Steps and turns", "Groups and prompts", "Segments", "Rollouts"),
    "Evaluation",
)
_HEADINGS = (RUN, *_OURS, _TRL, _TRANSFORMERS)
# the flags of TRL and transformers on the short page
_ESSENTIAL = (
    "output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size gradient_accumulation_steps "
    "num_generations max_completion_length temperature beta use_vllm seed logging_steps report_to save_steps "
    "resume_from_checkpoint push_to_hub hub_model_id model_name_or_path dtype use_peft"
).split()
# our flags that `--help all` alone describes: most runs leave them at their defaults
_RARE = (
    "length_sort shared_prefix skip_zero_advantage expert_drift allow_changed nonfinite_patience dataset_revision "
    "dataset_config dataset_split reward_timeout behavior_logps dull_kl trace_unit turn_average "
    "step_gamma step_baseline state_weight"
).split()
_ABOUT = """\
Every flag can also be a line `name: value` in a YAML file: --config a.yaml b.yaml. Later files override
earlier ones, and flags override files. --no_NAME turns off a flag that is on by default."""
_COLUMN, _SHORT_COLUMN, _NAME_COLUMN = 34, 28, 16  # where texts begin
# how TRL and transformers speak of a default, which a preset or the embedded model may replace
_CLAIM = re.compile(r"\b[Dd]efault(?:s to| of)\b")
_CONDITION = re.compile(r"\b(?:if|unless|when|where)\b", re.IGNORECASE)

Describe = Callable[[Action], str]


@dataclass(frozen=True)
class HelpPages:
    """What `--help` prints.

    Args:
        prog (`str`):
            The program.
        epilog (`str`):
            Text at the end of a page.
        actions (`list[Action]`):
            The flags.
        knobs (mapping of `str` to [`~trl_credit.config.knobs.Knob`]):
            The declarations of our fields of the configuration.
    """

    prog: str
    epilog: str
    actions: list[Action]
    knobs: Mapping[str, Knob]

    def full(self) -> str:
        """Every flag, under a heading for each group."""
        return self._page([_wrapped(f"{_ABOUT} N is an integer, X any number.")], self.actions, _in_full)

    def short(self) -> str:
        """The flags of ours that have an effect with the defaults, and those of TRL that most runs set."""
        default = {action.dest: action.default for action in self.actions}
        chosen = SimpleNamespace(**default)
        idle = [name for name, knob in self.knobs.items() if not is_active(chosen, knob.acts)]
        theirs = {f.name for of in (GRPOConfig, ModelConfig) for f in fields(of)} - {*_ESSENTIAL}
        actions = [action for action in self.actions if action.dest not in {*idle, *_RARE, *theirs}]
        says = f"In brackets: the defaults of {default['algo']} with the model {default['model_name_or_path']}."
        algorithms = [_row(f"  {name}", preset.summary, _NAME_COLUMN) for name, preset in PRESETS.items()]
        page = self._page([_wrapped(f"{_ABOUT} {says}"), "\n".join(["Algorithms:", *algorithms])], actions, _in_short)
        idle = [name for name in idle if name not in _RARE]
        rest = f"Rarely set: {', '.join(_RARE)}. No effect with these defaults: {', '.join(idle)}."
        more = f"--help all describes all {len(self.actions)} flags, including those of TRL and transformers."
        return f"{page}\n{_wrapped(rest)}\n\n{more}\n"

    def _page(self, head: list[str], actions: list[Action], described: Describe) -> str:
        """Flags under their headings."""
        place = {name: i for i, name in enumerate([*_RUN_ORDER, *self.knobs])}
        parts = [f"usage: {self.prog} [--flag value …]", *head]
        for title in _HEADINGS:
            group = [action for action in actions if self._heading(action.dest) == title]
            if title == RUN:
                group.sort(key=lambda action: place[action.dest])
            if group:
                parts.append("\n".join([f"{title}:", *map(described, group)]))
        return "\n\n".join([*parts, self.epilog]).rstrip() + "\n"

    def _heading(self, name: str) -> str:
        if name in _RUN_ORDER:
            return RUN
        if name in self.knobs:
            return self.knobs[name].heading
        if name in _REWARDS:
            return "Rewards"
        of = next((of for of in _CLASSES if name in of.__dataclass_fields__), None)
        return _CLASSES[of] if of is not None else "Evaluation" if name.startswith("evaluat") else "Credit"


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, 200)) - 2


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _width(), break_on_hyphens=False)


def _in_full(action: Action) -> str:
    """A flag with the kind of its value, its help, its choices and its default."""
    text = _without_defaults(_help(action))
    if action.choices and str(next(iter(action.choices))) not in text:
        text += f" One of {', '.join(map(str, action.choices))}."
    if action.default is not SUPPRESS and not (action.default is None and "Default: " in text):
        text += f" (default: {_default(action)})"
    kinds = {"int": "N", "float": "X", "string_to_bool": "true|false"}
    kind = "CHOICE" if action.choices else kinds.get(getattr(action.type, "__name__", ""), "TEXT")
    value = str(action.metavar or kind)
    value = {"?": f"[{value}]", "+": f"{value} …"}.get(str(action.nargs), value)
    return _row(f"  {action.option_strings[0]} {value}", text, _COLUMN)


def _in_short(action: Action) -> str:
    """A flag, what it does, its choices, and its default unless that is `None`."""
    said, _, values = _help(action).partition(" Must be ")
    if action.dest == "algo":
        said = "One of these."
    elif action.dest in _ESSENTIAL:
        said = re.split(r"(?<=\.) ", said)[0]
    if values.startswith("one of "):
        names = re.findall(r"'(\w+)'", values)
        said = f"{said.rstrip('.')}: {', '.join(names)}{', file.py:function' * ('file.py' in values)}."
    default = "" if action.default in (SUPPRESS, None) else f" [{_default(action)}]"
    return _row(f"  {action.option_strings[0]}", said + default, _SHORT_COLUMN)


def _help(action: Action) -> str:
    return (action.help or "").replace("%%", "%")


def _default(action: Action) -> str:
    value = action.default.value if isinstance(action.default, Enum) else action.default
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _without_defaults(text: str) -> str:
    """The help of a field without words on a default, which another class or a preset may have replaced."""
    sentences = re.split(r"(?<=[.!?]) ", text.replace(" (default)", ""))
    return " ".join(s for s in sentences if _CONDITION.search(s) or not _CLAIM.search(s))


def _row(flag: str, text: str, column: int) -> str:
    """A flag, and its text from a column on."""
    indent = " " * column
    layout = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
    filled = textwrap.fill(" ".join(text.split()), _width(), **layout)
    return f"{flag}\n{filled}" if len(flag) > column - 2 else flag.ljust(column) + filled[column:]
