"""What TRL's parser does not do: `--advantage_floor None`."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, get_args, get_type_hints


def accept_none(parser: argparse.ArgumentParser, kinds: Iterable[type]) -> None:
    """Has the flags of dataclass fields that may be `None`, and by default are something else, take the word `None`."""
    for kind in kinds:
        hints = get_type_hints(kind)
        names = [f.name for f in fields(kind) if f.init and f.default not in (None, MISSING)]
        for action in (parser._option_string_actions[f"--{name}"] for name in names if _optional(hints[name])):
            action.type = _or_none(action.type)
            if action.choices is not None:
                action.choices = [*action.choices, None]


def _optional(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    @wraps(convert, updated=())  # its name stands in argparse's messages
    def converted(text: str) -> Any:
        return None if text == "None" else convert(text)

    return converted
