"""The recipe and the command that repeat a run, from its public settings."""

import json
import shlex
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, get_args, get_type_hints

import yaml

from ..config import CreditConfig, active_part
from ..demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_model_path
from .public import Public
from .settings import changed


COMMAND_LINE = {"logging_steps": 1}  # the command line's defaults that are not those of the configuration
# of what starts the processes; other flags may name machines, folders and accounts
LAUNCHER_FLAGS = ("m", "module", "accelerate_config", "config_file", "num_processes", "nproc_per_node")


def recipe_of(
    args: CreditConfig, choices: Collection[Any], public: Public, *, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The public settings of a run that the command line would not choose by itself, as values that YAML can hold.

    `choices` are the dataclasses beside the configuration; `more` comes first.
    """
    recipe = dict(more or {})
    for part in choices:
        recipe |= changed(part)
    demo = any(getattr(part, "model_name_or_path", None) == demo_model_path() for part in choices)
    of_demo = {**DEMO_SETTINGS, **active_part(DEMO_SEGMENTS, vars(args))} if demo else {}
    recipe |= changed(args, defaults=COMMAND_LINE | of_demo)
    return public.value(recipe)


def to_yaml(recipe: dict[str, Any]) -> str:
    """`name: value` lines, which `--config` takes back."""
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=100)


def launcher_words(words: list[str], public: Public) -> list[str]:
    """The words of a command line up to its script, a .py file (all words if there is none): without folders, secrets,
    and flags that are not in `LAUNCHER_FLAGS`."""
    kept, is_public = [], True
    for word in words:
        is_script = word.endswith(".py") and not word.startswith("-")
        if word.startswith("-"):
            is_public = word.partition("=")[0].replace("-", "_").lstrip("_") in LAUNCHER_FLAGS
        if is_public or is_script:
            kept.append(public.text(word))
        if is_script:
            break
    return kept


def command_of(recipe: dict[str, Any], *, script: list[str], kinds: Collection[type]) -> str:
    """The command that does what `recipe` does, for a shell; it names `recipe.yaml` if flags cannot hold a value.

    Args:
        recipe (`dict`):
            Public values by field; `env` holds environment variables.
        script (`list[str]`):
            The words before the flags.
        kinds (collection of dataclasses):
            The classes that have the fields.
    """
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    flags = [_flag(name, value, hints.get(name)) for name, value in recipe.items() if name != "env"]
    if None in flags:
        return shlex.join([*script, "--config", "recipe.yaml"])
    variables = "".join(f"{name}={shlex.quote(str(value))} " for name, value in (recipe.get("env") or {}).items())
    return variables + shlex.join([*script, *(word for words in flags for word in words)])


def _flag(name: str, value: Any, hint: Any) -> list[str] | None:
    """The words of a flag; `None` if no words mean this value."""
    if isinstance(value, dict):
        if str not in get_args(hint) or not _keeps_its_types(value):
            return None
        words = [json.dumps(value)]
    elif isinstance(value, list):
        if not value or not all(isinstance(part, (str, int, float)) for part in value):
            return None
        words = [_word(part) for part in value]
        if str in get_args(hint):  # transformers splits these itself
            words = [" ".join(words)]
    else:
        words = [_word(value)]
    if not any(word.startswith("-") for word in words):
        return [f"--{name}", *words]
    if len(words) == 1:
        return [f"--{name}={words[0]}"]
    numbers = all(isinstance(part, (int, float)) for part in value)
    return [f"--{name}", *words] if numbers else None  # argparse takes other words that begin with a dash for flags


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}".lower().replace("infinity", "inf")  # argparse takes -1e-05 for a flag
    return str(value)


def _keeps_its_types(value: Any) -> bool:
    # in a flag that holds JSON, transformers turns strings that look like numbers and booleans into these
    if isinstance(value, dict):
        return all(map(_keeps_its_types, value.values()))
    return not (isinstance(value, str) and (value.lower() in ("true", "false") or value.replace(".", "", 1).isdigit()))
