"""The words of a comparison's command line: algorithms, settings that are held equal, and a sweep."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...presets import PRESETS
from ...support.errors import choose


@dataclass(frozen=True)
class Entry:
    """An algorithm of the grid.

    Attributes:
        name: Its name in paths.
        label: Its name in the report.
        words: Flags of `trl-credit train`, `--algo` and a preset first; in a grid those of every run.
        settings: Settings of the shared files that it has.
        left_out: Shared settings that it does not have.
        steps: Optimizer steps of a run, −1 if epochs set them.
    """

    name: str
    label: str
    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    steps: int = -1


@dataclass(frozen=True)
class Sweep:
    """A setting whose value is chosen for each algorithm on tuning seeds.

    Attributes:
        name: The setting.
        values: Its values as they were written, in ascending order where they are numbers.
        seeds: The tuning seeds.
    """

    name: str
    values: tuple[str, ...]
    seeds: tuple[int, ...]


def read_entries(algorithms: Sequence[str], credit: Sequence[str]) -> list[Entry]:
    """The algorithms that `--algo` and `--credit` name.

    Args:
        algorithms (`list[str]`):
            Names of algorithms, or `NAME=ALGO --flag value …`, an algorithm with its own flags.
        credit (`list[str]`):
            Custom functions and classes, `file.py:name`, with the settings of GRPO, or of another algorithm:
            `NAME=ALGO+file.py:name --flag value …`.

    Raises:
        ValueError: an unknown algorithm, a name that cannot be a folder, or a name that is given twice.
    """
    entries = [_entry("--algo", text) for text in algorithms] + [_entry("--credit", text) for text in credit]
    names = [entry.name.lower() for entry in entries]
    for name in names:
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise ValueError(f"the name {name!r} also names a folder: use letters, digits, '_', '.' and '-'")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice: rename one of them, NAME={name} …")
    return entries


def _entry(flag: str, text: str) -> Entry:
    is_named = re.match(r"[^\s=]+=", text.partition(" --")[0])
    name, _, rest = text.partition("=") if is_named else ("", "", text)
    if flag == "--algo":
        base, *flags = shlex.split(rest) or [""]
        if base not in PRESETS:
            raise ValueError(f"--algo {text!r}: {base!r} is no algorithm{choose(base, PRESETS)}")
        short, label, words = base, PRESETS[base].name, flags
    else:
        base, function, flags = split_credit(rest)
        short = label = re.split(r"[:.]", function)[-1]
        words = ["--credit", function, *flags]
    if flags and not name:
        raise ValueError(f"{flag} {text!r}: give it a name, NAME={text}")
    return Entry(name or short, name or label, ("--algo", base, *words))


def split_credit(text: str) -> tuple[str, str, list[str]]:
    """The algorithm, the function or class, and the flags of `ALGO+FILE.py:NAME --flag value …`."""
    named, _, flags = text.partition(" --")
    base, _, function = named.partition("+")
    base, function = (base, function) if base in PRESETS and function else ("grpo", named)
    return base, function.strip(), shlex.split(f"--{flags}") if flags else []


def read_equal(words: Sequence[str]) -> dict[str, str]:
    """The settings of `--equal NAME=VALUE …`. Raises `ValueError` for other words, or a name that is given twice."""
    settings = dict(_setting(word, flag="--equal") for word in words)
    if len(settings) < len(words):
        raise ValueError("--equal names a setting twice: leave out one")
    return settings


def read_sweep(text: str, seeds: Sequence[int]) -> Sweep:
    """The sweep `NAME=VALUE,VALUE…` with these tuning seeds. Raises `ValueError` for fewer than two values or seeds."""
    name, listed = _setting(text, flag="--sweep")
    words = [word.strip() for word in listed.split(",")]
    by_value = {number(word): word for word in words if word}
    if len(by_value) < 2 or len(by_value) < len(words):
        raise ValueError(f"--sweep {text}: give at least two different values, {name}=A,B,…")
    if len(set(seeds)) < max(2, len(seeds)):
        raise ValueError("--tuning_seeds needs at least two different seeds")
    return Sweep(name, tuple(by_value[value] for value in in_order(by_value)), tuple(seeds))


def number(text: str) -> float | str:
    """The number that a text stands for, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def in_order(values: Sequence[float | str]) -> list[float | str]:
    """Different values: numbers in ascending order, others as they come."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if all(isinstance(value, int | float) for value in distinct) else distinct


def _setting(word: str, *, flag: str) -> tuple[str, str]:
    name, separator, value = word.partition("=")
    if not re.fullmatch(r"[A-Za-z]\w*", name) or not separator or not value.strip():
        raise ValueError(f"{flag} {word!r}: write NAME=VALUE, such as learning_rate=1e-4")
    return name, value.strip()
