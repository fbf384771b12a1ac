"""The parser of a run's flags: one flag per field, and values of YAML files as flags read them."""

import reprlib
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trl import TrlParser

from ..config.knobs import knobs_of
from ..config.trl_settings import NONE_TOO
from .help import page
from .parser import OneLineParser


# types that a field accepts in a YAML file besides those of its annotation
_ACCEPTS_TOO = {"dataset_config": dict, "fsdp": bool, "resume_from_checkpoint": bool, "scale_rewards": bool}
_ACCEPTS_TOO |= dict.fromkeys(NONE_TOO, NoneType)


class FlagParser(OneLineParser, TrlParser):
    """TRL's parser of dataclasses, with a readable help and errors in one line.

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
        self._knobs = {name: knob for of in self.classes for name, knob in knobs_of(of).items()}
        self.hints = {name: hint for of in self.classes for name, hint in get_type_hints(of).items()}
        bases = [base for of in self.classes for base in reversed(of.__mro__) if is_dataclass(base)]
        # a preset that gives a field another default keeps the help of its first definition
        self._helps = {f.name: f.metadata["help"] for base in bases for f in fields(base) if "help" in f.metadata}
        self._helps |= helps or {}
        super().__init__(dataclass_types=self.classes, add_help=False, **kwargs)
        self.add_argument("--help", "-h", nargs="?", choices=["all"], action=_PrintHelp, default=SUPPRESS)
        files = "YAML files of settings, or recipes by name."
        self.add_argument("--config", nargs="+", metavar="FILE", help=files, default=SUPPRESS)

    def add_argument(self, *names: Any, **kwargs: Any) -> Action:
        """Adds a flag with the help of its field; one that may be `None` accepts that word."""
        name = names[0].removeprefix("--")
        if name in self._helps:
            kwargs["help"] = self._helps[name]
        if (NoneType in get_args(self.hints.get(name)) or name in NONE_TOO) and "type" in kwargs:
            kwargs["type"] = _or_none(kwargs["type"])
            if "choices" in kwargs:
                kwargs["choices"] = [*kwargs["choices"], None]
        return super().add_argument(*names, **kwargs)

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
        if type(value) in kinds and not (isinstance(value, str) and action.choices) and not (is_list and value):
            return value
        is_text = action.choices is not None or getattr(action.type, "__wrapped__", action.type) is str
        words = []
        for one in value if is_list else [value]:
            if isinstance(one, (dict, list)) or (is_text and not isinstance(one, str)):
                fix = "text, in quotes" if is_text else "one value"
                raise ValueError(f"{where} cannot be {reprlib.repr(value)}: give it {fix}")
            words.append(str(one).removesuffix(".0") if isinstance(one, float) else str(one))  # 7.0 is a whole number
        try:
            parsed = self.parse_known_args([f"--{name}", *words] if is_list else [f"--{name}={words[0]}"])[0]
        except ValueError as error:
            raise ValueError(f"{where}: {str(error).removeprefix(f'--{name}: ')}") from None
        return getattr(parsed, name)

    def format_help(self, *, full: bool = False) -> str:
        """The short page, or that of `--help all` (see [`~trl_credit.settings.help.page`])."""
        actions = [a for a in self._actions if a.dest != "help" and not a.option_strings[0].startswith("--no_")]
        return page(self.prog, self.epilog or "", actions, self._knobs, full=full)


class _PrintHelp(Action):
    """`--help`, or `--help all`."""

    def __call__(self, parser: FlagParser, namespace: Any, values: str | None, option: str | None = None) -> None:
        print(parser.format_help(full=values is not None), end="")
        parser.exit()


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    @wraps(convert, updated=())  # argparse shows its name
    def converted(text: str) -> Any:
        return None if text == "None" else convert(text)

    return converted
