"""The flags of a run: one parser for all fields, in groups, with help; and values of YAML files by a field's type."""

import shutil
import textwrap
from argparse import SUPPRESS, Action
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig, TrlParser

from .config import CreditConfig
from .data import DataArguments
from .mistakes import OneLineParser, choose
from .segment_config import SegmentKnobs


_ROLLOUTS = (
    "rollouts rollouts_per_state initial_value certain_tolerance truncated_value rollout_batch_size tree_branching "
    "tree_segment_length tree_rows replay_iterations replay_cap replay_legacy"
).split()
_REWARDS = (
    "reward reward_weights reward_timeout reward_range difficulty_reward multi_objective_aggregation scale_rewards"
).split()
_RUN = (
    "algo config output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size "
    "gradient_accumulation_steps steps_per_generation num_generations max_completion_length temperature beta seed "
    "length_sort shared_prefix skip_without_credit logging_steps log_credit log_credit_groups report_to run_name "
    "save_strategy save_steps save_total_limit save_only_model "
    "resume_from_checkpoint overwrite_output_dir allow_changed nonfinite_patience push_to_hub hub_model_id "
    "hub_private_repo hub_strategy hub_revision "
    "hub_token"
).split()
_TITLES = ("Run and checkpoints", "Model", "Data", "Rewards", "Credit", "Segments", "Rollouts", "Evaluation")
_TITLES_OF_OTHERS = ("TRL's (GRPOConfig)", "transformers' (TrainingArguments)")
# what a field takes beside what its annotation says
_TAKES_TOO: dict[str, tuple[type, ...]] = {
    "dataset_config": (dict,),
    "fsdp": (bool,),
    "resume_from_checkpoint": (bool,),
    "scale_rewards": (bool,),
}
_HEAD = """\
Every flag may be a line `name: value` of a YAML file as well: --config a.yaml b.yaml; later files win, and flags over
files. N is a whole number, X any. A flag that is on by default is turned off by --no_NAME."""


def _names(of: type) -> set[str]:
    return {f.name for f in fields(of)}


def group_of(name: str) -> str:
    """The heading under which `--help` has a field."""
    run, model, data, rewards, credit, segments, rollouts, evaluation = _TITLES
    trl, transformers = _TITLES_OF_OTHERS
    for names, title in (
        (_RUN, run),
        (_REWARDS, rewards),
        (_ROLLOUTS, rollouts),
        (_names(SegmentKnobs), segments),
        (_names(TrainingArguments), transformers),
        (_names(GRPOConfig), trl),
        (_names(CreditConfig), credit),
        (_names(DataArguments), data),
        (_names(ModelConfig), model),
    ):
        if name in names:
            return title
    return evaluation if name.startswith("evaluat") else run


class FlagParser(OneLineParser, TrlParser):
    """TRL's parser of dataclasses, with the flags in groups, a help that one can read, and mistakes in one line.

    Raises:
        ValueError: where argparse would print its usage and exit.
    """

    def __init__(self, dataclass_types: Iterable[type], **kwargs: Any) -> None:
        self._titled: dict[str, list[Action]] = {title: [] for title in (*_TITLES, *_TITLES_OF_OTHERS)}
        super().__init__(dataclass_types=tuple(dataclass_types), **kwargs)
        self.add_argument(
            "--config", nargs="+", metavar="FILE", help="YAML files of settings, or recipes by name.", default=SUPPRESS
        )

    def add_argument(self, *names: Any, **kwargs: Any) -> Action:
        """As argparse has it; the group follows from the name."""
        action = super().add_argument(*names, **kwargs)
        if action.dest != "help" and not names[0].startswith("--no_"):
            self._titled[group_of(action.dest)].append(action)
        return action

    def format_help(self) -> str:
        """All flags, under a heading for each group."""
        width = max(60, min(shutil.get_terminal_size().columns, 200)) - 2
        parts = [f"usage: {self.prog} [--flag value …]\n\n{textwrap.fill(_HEAD, width)}"]
        for title, actions in self._titled.items():
            ordered = sorted(actions, key=lambda action: _RUN.index(action.dest)) if title == _TITLES[0] else actions
            parts.append("\n".join([f"{title}:", *(_described(action, width) for action in ordered)]))
        return "\n\n".join([*parts, self.epilog or ""]).rstrip() + "\n"


def _described(action: Action, width: int) -> str:
    """A flag, its value and what it does, with its default."""
    kinds = {"int": "N", "float": "X", "string_to_bool": "true|false"}
    kind = "CHOICE" if action.choices else kinds.get(getattr(action.type, "__name__", ""), "TEXT")
    value = str(action.metavar or kind)
    value = {"?": f"[{value}]", "+": f"{value} …"}.get(str(action.nargs), value)
    try:  # `%%`, as argparse has it
        said = (action.help or "") % {"default": action.default, "prog": ""}
    except (TypeError, ValueError, KeyError):
        said = action.help or ""
    if action.choices and str(next(iter(action.choices))) not in said:
        said += f" One of {', '.join(map(str, action.choices))}."
    if action.default is not SUPPRESS:
        default = action.default
        default = default.value if isinstance(default, Enum) else default
        shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else default
        said += f" (default: {shown})"
    flag, indent = f"  {action.option_strings[0]} {value}", " " * 34
    layout = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
    text = textwrap.fill(" ".join(said.split()), width, **layout)
    return f"{flag}\n{text}" if len(flag) > 32 else flag.ljust(34) + text[34:]


def fitted(value: Any, name: str, hints: dict[str, Any], *, file: str) -> Any:
    """A value of a YAML file as the field `name` takes it: `1e-6`, which is text in YAML, as a number.

    Raises:
        ValueError: it is of another type than the field.
    """
    if isinstance(value, _TAKES_TOO.get(name, ())):
        return value
    ok, result = _fit(value, hint := hints[name])
    if ok:
        return result
    where = f"{name} in {file}"
    if value is None:
        raise ValueError(f"{where} is empty: give it a value, or take the line out")
    wanted, got = _words(hint), repr(value)
    got = got if len(got) <= 60 else got[:60] + "…"
    if (choices := _choices(hint)) and isinstance(value, str):
        raise ValueError(f"{where} has no choice {got}{choose(value, choices)}")
    quotes = ""
    if isinstance(value, (bool, int, float)) and "text" in wanted or choices:
        word = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        quotes = f': write it in quotes, "{word}"' if not isinstance(value, (list, dict)) else ""
    raise ValueError(f"{where} must be {wanted}, got {got}{quotes}")


def type_hints(classes: Iterable[type]) -> dict[str, Any]:
    """The annotated type of every field of some dataclasses."""
    return {name: hint for of in classes for name, hint in get_type_hints(of).items()}


def _members(hint: Any) -> list[Any]:
    """The types that a union is of, without `str` where it stands for the values of an enumeration."""
    members = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    return [m for m in members if m is not str] if any(map(_is_enum, members)) else members


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _choices(hint: Any) -> list[str]:
    return [str(choice.value) for member in _members(hint) if _is_enum(member) for choice in member]


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    members = _members(hint)
    for member in sorted(members, key=lambda m: m is str):  # text takes what is a number too
        ok, result = _fit_one(value, member)
        if ok:
            return True, result
    return False, None


def _fit_one(value: Any, member: Any) -> tuple[bool, Any]:
    origin = get_origin(member) or member
    if member is NoneType:
        return value is None, None
    if origin is Literal:
        return value in get_args(member), value
    if _is_enum(member):
        return value in [choice.value for choice in member], value
    if origin is bool:
        words = {"yes": True, "true": True, "no": False, "false": False, "1": True, "0": False}
        known = isinstance(value, (bool, int, str)) and str(value).lower() in words
        return known, words.get(str(value).lower())
    if origin in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return False, None
        if origin is int and isinstance(value, float):
            return value.is_integer(), value if not value.is_integer() else int(value)
        try:
            return True, origin(value)
        except (ValueError, OverflowError):
            return False, None
    if origin is str:
        return isinstance(value, str), value
    if origin is list:
        results = [_fit(one, get_args(member)[0]) for one in (value if isinstance(value, list) else [value])]
        return all(ok for ok, _ in results) and value is not None, [result for _, result in results]
    if origin is dict:
        return isinstance(value, dict), value
    return True, value  # a type of somebody else's, which checks itself


def _words(hint: Any) -> str:
    told = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "`name: value` lines"}
    said = []
    for member in _members(hint):
        origin = get_origin(member) or member
        if origin is list:
            said.append(f"a list of {_words(get_args(member)[0]).removeprefix('a ').replace('number', 'numbers')}")
        elif _is_enum(member):
            said.append(f"one of {', '.join(_choices(member))}")
        elif member is not NoneType:
            said.append(told.get(origin, str(getattr(member, "__name__", member))))
    return " or ".join(said)
