"""A command-line parser that reports every error as one line. Imports neither torch nor TRL."""

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from ..support.errors import choose, raise_together
from ..support.retired import meant_by
from .files import read_settings


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, whose help keeps the lines of its description.

    Where argparse would print its usage and exit, `parse_args` and `parse_known_args` raise `ValueError` with one line.
    """

    def __init__(self, **kwargs: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, exit_on_error=False, formatter_class=layout, **kwargs)
        # argparse takes -1e-3 for a flag before Python 3.14
        self._negative_number_matcher = re.compile(r"-(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|-(inf|nan)$")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise ValueError(f"{(error.argument_name or '').partition('/')[0]}: {error.message}") from None

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        parsed, rest = self.parse_known_args(args, namespace)
        raise_together(unknown_arguments(rest, self.flags()))
        return parsed

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: --help lists the flags")

    def flags(self) -> list[str]:
        """Every flag in its first spelling."""
        return [action.option_strings[0] for action in self._actions if action.option_strings]


def unknown_arguments(words: list[str], flags: Iterable[str], *, lists: str = "--help") -> list[Exception]:
    """An error for each word of a command line that no flag accepts, without the values of unknown flags; `lists` is
    the flag that lists them all."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    texts = [f"{word!r} follows no flag: write --name before it, {lists} lists them" for word in words[:first]]
    unknown = [word.partition("=")[0] for word in words[first:] if word.startswith("-")]
    texts += [f"unknown flag {flag!r}{meant_by(flag, flags) or f': {lists} lists them'}" for flag in unknown]
    return [*map(ValueError, texts)]


def unknown_field(name: str, file: str, known: Iterable[str]) -> Exception:
    """The error about a line of a YAML file that sets no field."""
    return ValueError(f"unknown field {name!r} in {file}{meant_by(name, known) or ': --help all lists the fields'}")


def unknown_algorithm(name: str, known: Iterable[str], *, file: str | None) -> Exception:
    """The error about an algorithm that does not exist, which a file may name."""
    return ValueError(f"unknown algorithm {name!r}{f' in {file}' if file else ''}{choose(name, known)}")


def read_files(argv: list[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], list[str]]:
    """Reads what other flags depend on.

    Returns:
        The values of `--algo`, `--credit`, the model and the data set in a command line; the settings of the files of
        `--config`; the file of each of these; and the remaining words.

    Raises:
        ValueError: a file cannot be read.
    """
    parser = OneLineParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", nargs="+", action="extend", default=[])
    for name in ("algo", "credit", "model_name_or_path", "dataset_name"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    parsed, rest = parser.parse_known_args(argv)
    typed = vars(parsed)
    return typed, *read_settings(typed.pop("config")), rest


def typed_fields(argv: Iterable[str]) -> list[str]:
    """The names of the fields whose flags stand in a command line."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]


def asks_for_help(argv: Iterable[str]) -> bool:
    """Whether `--help` stands in a command line."""
    return not {"-h", "--help"}.isdisjoint(word.partition("=")[0] for word in argv)
