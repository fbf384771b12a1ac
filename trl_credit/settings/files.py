"""YAML files of settings: a file over its bases, later files over earlier ones, and which file set what."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from .recipes import find_recipe, meant_recipe


LARGEST_FILE = 100_000  # bytes


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
_FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


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
    shown = repr(str(path))
    if not path.is_file():
        meant = None if readers else meant_recipe(str(path))
        fix = f"did you mean {meant!r}?" if meant else "check --config and `base`"
        raise ValueError(f"{shown} is no file and no recipe: {fix}")
    if path.resolve() in readers:
        raise ValueError(f"{shown} is its own `base`")
    own = _load(path)
    if not isinstance(own, dict) or not all(isinstance(key, str) for key in own):
        raise ValueError(f"{shown} must hold `name: value` lines: check --config")
    if not isinstance(own.pop("about", {}), dict):
        raise ValueError(f"`about` in {shown} must hold `name: value` lines")
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
        return yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{str(path)!r} cannot be read as YAML: {' '.join(str(error).split())}") from error
