"""The parser of a run's flags: one flag per field, `--help` in groups, and values of YAML files as flags read them."""

import shutil
import textwrap
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig, TrlParser

from ..config.knobs import RUN, knobs_of
from ..data import DataArguments
from .parser import OneLineParser


# TRL's flags and the script's own under `RUN`, in the order of --help; our knobs of a run follow
_RUN_ORDER = (
    "algo config output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size "
    "gradient_accumulation_steps steps_per_generation num_generations max_completion_length temperature beta seed "
    "logging_steps report_to run_name save_strategy save_steps save_total_limit save_only_model resume_from_checkpoint "
    "push_to_hub hub_model_id hub_private_repo hub_strategy hub_revision hub_token"
).split()
_REWARDS = "reward reward_weights multi_objective_aggregation scale_rewards".split()
_CLASSES = {
    TrainingArguments: "transformers' (TrainingArguments)",
    GRPOConfig: "TRL's (GRPOConfig)",
    DataArguments: "Data",
    ModelConfig: "Model",
}
_HEADINGS = (RUN, "Model", "Data", "Rewards", "Credit", "Segments", "Rollouts", "Evaluation")
# types that a field accepts in a YAML file besides those of its annotation
_ACCEPTS_TOO = {"dataset_config": dict, "fsdp": bool, "resume_from_checkpoint": bool, "scale_rewards": bool}
_HEAD = """\
Every flag may be a line `name: value` of a YAML file as well: --config a.yaml b.yaml; later files override
earlier ones, and flags override files. N is a whole number, X any number. A flag that is on by default is turned off by
--no_NAME."""


class FlagParser(OneLineParser, TrlParser):
    """TRL's parser of dataclasses, with flags in groups, a readable help, and errors in one line.

    Args:
        classes (iterable of dataclasses):
            Each field is a flag.
        helps (mapping of `str` to `str`, *optional*):
            Help of fields whose choices are known only now.

    Raises:
        ValueError: where argparse would print its usage and exit.
    """

    def __init__(self, classes: Iterable[type], *, helps: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self.classes = tuple(classes)
        self.hints = {name: hint for of in self.classes for name, hint in get_type_hints(of).items()}
        bases = [base for of in self.classes for base in reversed(of.__mro__) if is_dataclass(base)]
        # a preset that gives a field another default keeps the help of its first definition
        self._helps = {f.name: f.metadata["help"] for base in bases for f in fields(base) if "help" in f.metadata}
        self._helps |= helps or {}
        self._knobs = {name: knob for of in self.classes for name, knob in knobs_of(of).items()}
        super().__init__(dataclass_types=self.classes, **kwargs)
        self.add_argument(
            "--config", nargs="+", metavar="FILE", help="YAML files of settings, or recipes by name.", default=SUPPRESS
        )

    def add_argument(self, *names: Any, **kwargs: Any) -> Action:
        """Adds a flag with the help of its field; one that may be `None` accepts that word."""
        name = names[0].removeprefix("--")
        if name in self._helps:
            kwargs["help"] = self._helps[name]
        if NoneType in get_args(self.hints.get(name)) and kwargs.get("default") is not None:
            kwargs["type"] = _or_none(kwargs["type"])
            if "choices" in kwargs:
                kwargs["choices"] = [*kwargs["choices"], None]
        return super().add_argument(*names, **kwargs)

    def _heading(self, name: str) -> str:
        if name in _RUN_ORDER:
            return RUN
        if name in self._knobs:
            return self._knobs[name].heading
        if name in _REWARDS:
            return "Rewards"
        of = next((of for of in _CLASSES if name in of.__dataclass_fields__), None)
        return _CLASSES[of] if of is not None else "Evaluation" if name.startswith("evaluat") else "Credit"

    def read(self, name: str, value: Any, *, file: str) -> Any:
        """A value of a YAML file as the flag `--name` reads it, such as 1.0 for `1` where the field is a float.

        Raises:
            ValueError: the flag would refuse it, or it must be text and is not in quotes.
        """
        action = self._option_string_actions[f"--{name}"]
        hint, where = self.hints[name], f"{name} in {file}"
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
        kinds = {get_origin(member) or member for member in members} | {_ACCEPTS_TOO.get(name)}
        if value is None and NoneType not in kinds:
            raise ValueError(f"{where} is empty: give it a value, or remove the line")
        is_list = isinstance(value, list) and action.nargs == "+"
        is_choice = isinstance(value, str) and action.choices is not None
        if type(value) in kinds and not is_choice and (not is_list or not value):
            return value
        given = value if is_list else [value]
        for one in given:
            if isinstance(one, (dict, list)):
                kind = "flat values" if is_list else "one value"
                raise ValueError(f"{where} cannot be {_short(value)}: give it {kind}")
            if not isinstance(one, str) and (action.choices is not None or action.type is str):
                raise ValueError(f"{where} must be text, got {one!r}: write it in quotes")
        # 7.0 is a whole number too
        words = [str(one).removesuffix(".0") if isinstance(one, float) else str(one) for one in given]
        try:
            parsed = self.parse_known_args([f"--{name}", *words] if is_list else [f"--{name}={words[0]}"])[0]
        except ValueError as error:
            raise ValueError(f"{where}: {str(error).removeprefix(f'--{name}: ')}") from None
        return getattr(parsed, name)

    def format_help(self) -> str:
        """All flags, under a heading for each group."""
        width = max(60, min(shutil.get_terminal_size().columns, 200)) - 2
        parts = [f"usage: {self.prog} [--flag value …]\n\n{textwrap.fill(_HEAD, width)}"]
        order = [*_RUN_ORDER, *self._knobs]
        shown = [a for a in self._actions if a.dest != "help" and not a.option_strings[0].startswith("--no_")]
        for title in (*_HEADINGS, _CLASSES[GRPOConfig], _CLASSES[TrainingArguments]):
            actions = [action for action in shown if self._heading(action.dest) == title]
            if title == RUN:
                actions.sort(key=lambda action: order.index(action.dest))
            parts.append("\n".join([f"{title}:", *(_described(action, width) for action in actions)]))
        return "\n\n".join([*parts, self.epilog or ""]).rstrip() + "\n"


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    @wraps(convert, updated=())  # argparse shows its name
    def converted(text: str) -> Any:
        return None if text == "None" else convert(text)

    return converted


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _described(action: Action, width: int) -> str:
    """A flag, the kind of its value, its help and its default."""
    kinds = {"int": "N", "float": "X", "string_to_bool": "true|false"}
    kind = "CHOICE" if action.choices else kinds.get(getattr(action.type, "__name__", ""), "TEXT")
    value = str(action.metavar or kind)
    value = {"?": f"[{value}]", "+": f"{value} …"}.get(str(action.nargs), value)
    text = (action.help or "").replace("%%", "%")
    if action.choices and str(next(iter(action.choices))) not in text:
        text += f" One of {', '.join(map(str, action.choices))}."
    if action.default is not SUPPRESS:
        default = action.default.value if isinstance(action.default, Enum) else action.default
        text += f" (default: {' '.join(map(str, default)) if isinstance(default, (list, tuple)) else default})"
    flag, indent = f"  {action.option_strings[0]} {value}", " " * 34
    layout = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
    filled = textwrap.fill(" ".join(text.split()), width, **layout)
    return f"{flag}\n{filled}" if len(flag) > 32 else flag.ljust(34) + filled[34:]
