"""The words of a comparison's command line: algorithms, settings that are held equal, and a sweep."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ...presets import PRESETS
from ...support.errors import choose


@dataclass(frozen=True)
class Entry:
    """An algorithm of the grid: its name, its label in the report, and its flags of `trl-credit train`."""

    name: str
    label: str
    words: tuple[str, ...]


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
    entries = []
    for text in algorithms:
        name, _, rest = text.partition("=") if re.match(r"[^\s-][^\s=]*=", text) else ("", "", text)
        words = shlex.split(rest)
        algo = words[0] if words else ""
        if algo not in PRESETS:
            raise ValueError(f"--algo {text!r}: {algo!r} is no algorithm{choose(algo, PRESETS)}")
        if not name and len(words) > 1:
            raise ValueError(f"--algo {text!r}: give it a name, NAME={text}")
        entries.append(Entry(name or algo, name or PRESETS[algo].name, ("--algo", algo, *words[1:])))
    for text in credit:
        name, _, rest = text.partition("=") if re.match(r"[^\s=]+=", text.partition(" --")[0]) else ("", "", text)
        base, function, flags = split_credit(rest)
        if flags and not name:
            raise ValueError(f"--credit {text!r}: give it a name, NAME={text}")
        name = name or re.split(r"[:.]", function)[-1]
        entries.append(Entry(name, name, ("--algo", base, "--credit", function, *flags)))
    seen: set[str] = set()
    for entry in entries:
        if not re.fullmatch(r"[\w+-][\w.+-]*", entry.name):
            raise ValueError(f"the name {entry.name!r} also names a folder: use letters, digits, '_', '.' and '-'")
        if entry.name.lower() in seen:
            raise ValueError(f"{entry.name!r} is given twice: rename one of them, NAME={entry.name} …")
        seen.add(entry.name.lower())
    return entries


def split_credit(text: str) -> tuple[str, str, list[str]]:
    """The algorithm, the function or class, and the flags of `ALGO+FILE.py:NAME --flag value …`."""
    named, _, flags = text.partition(" --")
    base, _, function = named.partition("+")
    base, function = (base, function) if base in PRESETS and function else ("grpo", named)
    return base, function.strip(), shlex.split(f"--{flags}") if flags else []


def read_equal(words: Sequence[str]) -> dict[str, str]:
    """The settings of `--equal NAME=VALUE …`. Raises `ValueError` for other words, or a name that is given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, value = _setting(word, flag="--equal")
        if name in found:
            raise ValueError(f"--equal names {name} twice: leave out one")
        found[name] = value
    return found


def read_sweep(text: str, seeds: Sequence[int]) -> Sweep:
    """The sweep `NAME=VALUE,VALUE…` with these tuning seeds. Raises `ValueError` for fewer than two values or seeds."""
    name, listed = _setting(text, flag="--sweep")
    values = [value.strip() for value in listed.split(",")]
    by_value = {number(value): value for value in values if value}
    if len(by_value) < 2 or len(by_value) < len(values):
        raise ValueError(f"--sweep {text}: give at least two different values, {name}=A,B,…")
    if len(set(seeds)) < max(2, len(seeds)):
        raise ValueError("--tuning_seeds needs at least two different seeds")
    if all(isinstance(value, float) for value in by_value):
        by_value = dict(sorted(by_value.items()))
    return Sweep(name, tuple(by_value.values()), tuple(seeds))


def number(text: str) -> float | str:
    """The number that a text stands for, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _setting(word: str, *, flag: str) -> tuple[str, str]:
    name, separator, value = word.partition("=")
    if not re.fullmatch(r"[A-Za-z]\w*", name) or not separator or not value.strip():
        raise ValueError(f"{flag} {word!r}: write NAME=VALUE, such as learning_rate=1e-4")
    return name, value.strip()
