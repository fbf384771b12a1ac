"""The recipe that repeats a run, from its public settings."""

from collections.abc import Collection, Mapping
from typing import Any

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
