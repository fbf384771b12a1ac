"""YAML files of settings: a file over its bases, later files over earlier ones, and which file said what."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from .recipes import find_recipe, meant_recipe


LARGEST_FILE = 100_000  # bytes: one that is larger is no settings file
MOST_VALUES = 10_000  # of a file, where each alias counts with all that it stands for


class _Loader(yaml.SafeLoader):
    """Refuses what YAML lets pass in silence: a key that stands twice, of which the last one would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise yaml.constructor.ConstructorError(
                        problem=f"{key.value!r} stands in line {lines[key.value]} already: take one of them out",
                        problem_mark=key.start_mark,
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)


class _Power(str):
    """`1e-6`: text in YAML 1.1, which wants a point in a number, and a number to whoever writes it."""


_Loader.add_implicit_resolver("!power", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
_Loader.add_constructor("!power", lambda loader, node: _Power(node.value))


def _settled(value: Any, *, inside: bool = False) -> Any:
    """A value with its `1e-6` as numbers inside of `name: value` lines, where no field's type says what they are.
    Elsewhere they stay text, for the field to take as a number or as text."""
    if isinstance(value, _Power):
        return float(value) if inside else str(value)
    if isinstance(value, dict):
        return {_settled(key): _settled(one, inside=True) for key, one in value.items()}
    return [_settled(one, inside=inside) for one in value] if isinstance(value, list) else value


def read_settings(paths: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of YAML files, later ones over earlier ones; and the file that each of them stands in.

    What is no file may be the name of a recipe ("s_trace/qwen3_4b_s_trace", see [`~trl_credit.recipes`]): its file, and
    of a row that has no file the one it starts from with its flags over it.
    A file's `base` (a path or several, relative to it) comes before the file itself. Its `about`, a mapping that says
    what the file is for, is no setting: it is left out, and not inherited from a `base`.

    Raises:
        ValueError: a file is missing, is not a mapping of names, says one thing twice, is no text or too large to be
            one, has an `about` or a `base` that is none, or is its own base.
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
    """Puts what a file and its bases say over what is in `merged`."""
    where = "--config and `base`" if readers else "--config"
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder: name a YAML file, check {where}")
    if not path.is_file():
        meant = meant_recipe(str(path)) if not readers and not path.is_symlink() else None
        if meant is not None:
            raise ValueError(f"there is no file {str(path)!r}, and no such recipe: did you mean {meant!r}?")
        raise ValueError(f"there is no file {str(path)!r}: check {where}")
    if path.resolve() in readers:
        raise ValueError(f"{str(path)!r} is its own `base`")
    own = _load(path)
    if not isinstance(own, dict):
        raise ValueError(f"{str(path)!r} must hold `name: value` lines: check --config")
    for key in own:
        if not isinstance(key, str):
            raise ValueError(f"{key!r} in {str(path)!r} is no name of a setting: write it as text")
    if not isinstance(own.pop("about", {}), dict):
        raise ValueError(f"`about` in {str(path)!r} must hold `name: value` lines: check --config")
    bases = own.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ValueError(f"`base` in {str(path)!r} must be a file, or a list of files")
    for base in bases:
        _merge(path.parent / base, (*readers, path.resolve()), merged, files)
    for name, value in own.items():
        is_env = name == "env" and isinstance(value, dict)  # variables are text
        merged[name] = {key: _settled(one) for key, one in value.items()} if is_env else _settled(value)
    files |= dict.fromkeys(own, str(path))


def _load(path: Path) -> Any:
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{str(path)!r} is larger than {LARGEST_FILE:,} bytes, which no settings are: check --config")
    try:
        text = path.read_text(encoding="utf-8")
        _count(yaml.compose(text, _Loader), path, {}, set())
        return yaml.load(text, _Loader) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise ValueError(f"{str(path)!r} cannot be read as YAML{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as YAML, it is no text in UTF-8: check --config") from error
    except RecursionError as error:
        raise ValueError(f"{str(path)!r} is nested too deep for settings: check --config") from error
    except ValueError as error:  # such as a date that there is not
        told = str(error) if str(path) in str(error) else f"{str(path)!r} cannot be read as YAML: {error}"
        raise ValueError(told) from error


def _count(node: yaml.Node | None, path: Path, counted: dict[int, int], inside: set[int]) -> int:
    """Values that a node stands for with its aliases written out: some lines of YAML can stand for billions."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in inside:
        raise ValueError(
            f"{str(path)!r} holds an alias of what it is in (line {node.start_mark.line + 1}): take it out"
        )
    if id(node) not in counted:
        inside.add(id(node))
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        counted[id(node)] = 1 + sum(_count(part, path, counted, inside) for part in parts)
        inside.discard(id(node))
    if counted[id(node)] > MOST_VALUES:
        raise ValueError(f"{str(path)!r} stands for more than {MOST_VALUES:,} values by its aliases: write them out")
    return counted[id(node)]
