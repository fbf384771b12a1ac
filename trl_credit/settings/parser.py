"""A command-line parser that reports every error as one line. Imports neither torch nor TRL."""

import argparse
import re
import sys
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, NoReturn

from ..support.errors import did_you_mean


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, whose help keeps the lines of its description.

    Where argparse would print its usage and exit, `parse_args` and `parse_known_args` raise `ValueError` with one line.
    """

    def __init__(self, **kwargs: Any) -> None:
        form = {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{"allow_abbrev": False, "exit_on_error": False, **form, **kwargs})
        # argparse takes -1e-3 for a flag before Python 3.14
        self._negative_number_matcher = re.compile(r"-(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|-(inf|nan)$")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            flag = (error.argument_name or "").partition("/")[0]
            raise ValueError(f"{flag}: {error.message}{self._as_words(flag, args)}") from None

    def _as_words(self, flag: str, args: Iterable[str] | None) -> str:
        """The fix for a list that was written as in Python or YAML, for the end of a message: ": write --f 2 2"."""
        action, words = self._option_string_actions.get(flag), [*(sys.argv[1:] if args is None else args)]
        start = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
        if start is None or action is None or action.nargs != "+":
            return ""
        given = [words[start].partition("=")[2], *takewhile(lambda word: not word.startswith("--"), words[start + 1 :])]
        parts = re.findall(r"[^\s\[\](),;]+", " ".join(given))
        return f": write {flag} {' '.join(parts)}" if parts and parts != given[given[0] == "" :] else ""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            raise ValueError(unknown_argument(rest[0], self.flags()))
        return parsed

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: --help lists the flags")

    def flags(self) -> list[str]:
        """Every flag in its first spelling."""
        return [action.option_strings[0] for action in self._actions if action.option_strings]


def unknown_argument(word: str, flags: Iterable[str], *, lists: str = "--help") -> str:
    """The message for a word of a command line that no flag accepts; `lists` is the flag that lists them all."""
    flag = word.partition("=")[0]
    if not word.startswith("-"):
        return f"{word!r} follows no flag: write --name before it, {lists} lists them"
    return f"unknown flag {flag!r}{did_you_mean(flag, flags) or f': {lists} lists them'}"


def typed_fields(argv: Iterable[str]) -> list[str]:
    """The names of the fields whose flags stand in a command line."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]
