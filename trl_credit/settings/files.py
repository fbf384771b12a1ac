"""YAML files of settings: a file over its bases, later files over earlier ones, and which file set what."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from .recipes import find_recipe, meant_recipe


LARGEST_FILE = 100_000  # bytes
MOST_VALUES = 10_000  # per file, with aliases written out


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key, where YAML would silently keep the last value, and reads `1e-6` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    problem = f"{key.value!r} is already set in line {lines[key.value]}: remove one of them"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


# in YAML 1.1 a number with an exponent needs a point
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_settings(paths: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of YAML files, later ones over earlier ones, and the file that sets each of them.

    A path that does not exist may be the name of a recipe ("s_trace/qwen3_4b_s_trace", see
    [`~trl_credit.settings.recipes`]). Then the recipe's file is read, and its flags, if any, override it.
    A file's `base` (a path or several, relative to it) is read before the file itself. Its `about`, a mapping that says
    what the file is for, is no setting: it is left out, and not inherited from a `base`.

    Raises:
        ValueError: a file is missing, too large or not text, is not a mapping of names, has a key twice, has an invalid
            `about` or `base`, or is its own base.
    """
    merged: dict[str, Any] = {}
    files: dict[str, str] = {}
    for path in paths:
        if os.path.lexists(path) or (row := find_recipe(path)) is None:
            _merge(Path(path), (), merged, files)
            continue
        _merge(row.recipe, (), merged, files)
        merged |= row.settings
        files |= dict.fromkeys(row.settings, f"the recipe {row.full_name}")
    return merged, files


def _merge(path: Path, readers: tuple[Path, ...], merged: dict[str, Any], files: dict[str, str]) -> None:
    """Writes the settings of a file and of its bases over those in `merged`."""
    where, shown = "--config and `base`" if readers else "--config", repr(str(path))
    if path.is_dir():
        raise ValueError(f"{shown} is a folder: name a YAML file, check {where}")
    if not path.is_file():
        if not readers and not path.is_symlink() and (meant := meant_recipe(str(path))) is not None:
            raise ValueError(f"there is no file {shown}, and no such recipe: did you mean {meant!r}?")
        raise ValueError(f"there is no file {shown}: check {where}")
    if path.resolve() in readers:
        raise ValueError(f"{shown} is its own `base`")
    own = _load(path)
    if not isinstance(own, dict) or not isinstance(own.get("about", {}), dict):
        what = "`about` in " if isinstance(own, dict) else ""
        raise ValueError(f"{what}{shown} must hold `name: value` lines: check --config")
    if wrong := [key for key in own if not isinstance(key, str)]:
        raise ValueError(f"{wrong[0]!r} in {shown} is no name of a setting: write it as text")
    own.pop("about", None)
    bases = own.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ValueError(f"`base` in {shown} must be a file, or a list of files")
    for base in bases:
        _merge(path.parent / base, (*readers, path.resolve()), merged, files)
    merged |= own
    files |= dict.fromkeys(own, str(path))


def _load(path: Path) -> Any:
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{str(path)!r} is larger than {LARGEST_FILE:,} bytes: check --config")
    try:
        text = path.read_text(encoding="utf-8")
        _count(yaml.compose(text, _Loader), {}, set())
        return yaml.load(text, _Loader) or {}
    except RecursionError as error:
        raise ValueError(f"{str(path)!r} is nested too deep for settings: check --config") from error
    except (yaml.YAMLError, ValueError) as error:  # UnicodeDecodeError is one, and so is a date that does not exist
        raise ValueError(f"{str(path)!r} cannot be read as YAML: {' '.join(str(error).split())}") from error


def _count(node: yaml.Node | None, counted: dict[int, int], inside: set[int]) -> int:
    """Number of values of a node with its aliases written out: a few lines of YAML can stand for billions."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in inside:
        raise ValueError(f"line {node.start_mark.line + 1} holds an alias of itself: remove it")
    if id(node) not in counted:
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        counted[id(node)] = 1 + sum(_count(part, counted, inside | {id(node)}) for part in parts)
    if counted[id(node)] > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values with its aliases written out: write fewer")
    return counted[id(node)]
