"""What of a run's settings may be shown to others, as a recipe and as a command that do the run again."""

import json
import logging
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_args, get_type_hints

import yaml
from transformers import TrainingArguments

from ..config import CreditConfig
from ..dead_knobs import live_part
from ..demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_model_path
from ..names import FunctionSource, function_label, is_object_name, method_label, source_of, source_of_object
from .built import built
from .describe import function_name
from .public import LEFT_OUT, Public
from .secrets import Secrets, is_secret_name


logger = logging.getLogger(__name__)

DERIVED = ("generation_batch_size",)  # which the configuration sets from the others
# which act on the process when a configuration is built, or take other types then
_NOT_TWICE = ("deepspeed", "fsdp", "fsdp_config", "accelerator_config", "parallelism_config")
COMMAND_LINE = {"logging_steps": 1}  # defaults of `cli.parse_arguments` that are not those of the configuration


def recipe_of(
    args: CreditConfig, choices: Collection[Any], public: Public, *, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a run's settings are that the command line would not choose by itself, as public values by field.

    `choices` are the dataclasses beside the configuration; `more` comes first.
    """
    recipe = dict(more or {})
    for part in choices:
        recipe |= changed(part)
    demo = any(getattr(part, "model_name_or_path", None) == demo_model_path() for part in choices)
    of_demo = {**DEMO_SETTINGS, **live_part(DEMO_SEGMENTS, vars(args))} if demo else {}
    recipe |= changed(args, defaults=COMMAND_LINE | of_demo)
    return public.value(recipe)


def changed(settings: Any, *, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a dataclass that differ from what they are by default, as they are: also those set to `None`.

    `defaults` are those of the command line where they are not the dataclass's. What is `LEFT_OUT` or secret is not
    among the fields. Built again from the fields returned, the dataclass is the same.
    """
    defaults = {name: value for name, value in (defaults or {}).items() if hasattr(settings, name)}
    names = [f.name for f in fields(settings) if f.init and f.name not in DERIVED]
    names = [name for name in names if not (LEFT_OUT.fullmatch(name) or is_secret_name(name))]
    found = _different(names, settings, vars(_built(settings, {})) | defaults)
    if found.get("importance") == found.get("importance_sampling_level") and "top_entropy_quantile" not in found:
        found.pop("importance_sampling_level", None)  # which our own knob sets, unless TRL's two were meant together
    # what one field gives another by default is no default where the other was chosen
    again = [name for name in names if name not in _NOT_TWICE]
    for _ in range(3):
        values = {name: value for name, value in found.items() if name in again}
        try:
            missing = _different(again, settings, vars(_built(settings, {**defaults, **values})))
        except ValueError as error:
            logger.warning("the recipe may lack a field that another one sets by default: %s", error)
            break
        if not (missing := {name: value for name, value in missing.items() if name not in found}):
            break
        found |= missing
    return {name: found[name] for name in names if name in found}


def _built(settings: Any, values: Mapping[str, Any]) -> Any:
    always = {"output_dir": settings.output_dir, "report_to": "none"} if isinstance(settings, TrainingArguments) else {}
    return built(type(settings), **{**always, **values})


def _different(names: Collection[str], settings: Any, other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names if getattr(settings, name) != other[name]}


def to_yaml(recipe: dict[str, Any]) -> str:
    """`name: value` lines, which `--config` takes back."""
    return yaml.safe_dump(Public(Secrets()).value(recipe), sort_keys=False, allow_unicode=True, width=100)


def command_of(recipe: dict[str, Any], *, script: list[str], kinds: Collection[type]) -> str:
    """The command that does what `recipe` does, for a shell; it names `recipe.yaml` where flags cannot say it.

    Args:
        recipe (`dict`):
            Public values by field; `env` holds environment variables.
        script (`list[str]`):
            What starts the script.
        kinds (collection of dataclasses):
            Which have the fields.
    """
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    flags = [_flag(name, value, hints.get(name)) for name, value in recipe.items() if name != "env"]
    if None in flags:
        return shlex.join([*script, "--config", "recipe.yaml"])
    variables = "".join(f"{name}={shlex.quote(str(value))} " for name, value in (recipe.get("env") or {}).items())
    return variables + shlex.join([*script, *(word for words in flags for word in words)])


def _flag(name: str, value: Any, hint: Any) -> list[str] | None:
    """The words of a flag; `None` where there are none that mean this value."""
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
    return [f"--{name}", *words] if numbers else None  # what begins with a dash looks like a flag


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}".lower().replace("infinity", "inf")  # argparse takes -1e-05 for a flag
    return str(value)


def _keeps_its_types(value: Any) -> bool:
    # in a flag that holds JSON, transformers makes numbers and truth values of strings that look like them
    if isinstance(value, dict):
        return all(map(_keeps_its_types, value.values()))
    return not (isinstance(value, str) and (value.lower() in ("true", "false") or value.replace(".", "", 1).isdigit()))


def function_comments(args: CreditConfig, *, method: Callable | None = None, rewards: Collection[Callable] = ()) -> str:
    """A YAML comment for each function of the run's own that credit is made by: its file and the SHA-256 of that file
    (of its own source where there is none), as it was loaded; and which of them no recipe can hold.

    `method` is a subclass's own `credit`, `rewards` are reward functions that no setting names.
    """
    lines = []
    if method is not None:
        source = source_of_object(method, method_label(method))
        lines += [f"credit: {source.name} of {_file(source)}, SHA-256 {source.digest}", _alone("the trainer's class")]
    for knob, name in args.own_functions().items():
        text = f"{knob}: {function_name(name)}"
        try:
            source = source_of(name, what=knob)
            text += f" of {_file(source)}, SHA-256 {source.digest}"
        except ValueError:
            text += ", whose file is gone"
        lines.append(text)
        if is_object_name(name):
            lines.append(_alone(knob))
    for reward in rewards:
        lines += [f"reward: {function_label(reward)}", _alone("reward")]
    # a name may hold line ends and what YAML takes for no text
    return "".join(f"# {''.join(c if c.isprintable() else '?' for c in line)}\n" for line in lines)


def _file(source: FunctionSource) -> str:
    return source.file.name if source.file is not None else "no file"


def _alone(what: str) -> str:
    return f"{what} was given as an object, which no recipe can hold: put it into a file, and name it file.py:function"


def public_command(words: list[str], public: Public | None = None) -> str:
    """A command line for a shell, without flags that are `LEFT_OUT` or secret, and without folders.

    `words` begin with the script. JSON is shown without what is `LEFT_OUT` or secret in it; what begins like JSON and
    is none, as `{...}` or `[...]`.
    """
    return shlex.join(public_words(words, public or Public(Secrets())))


def public_words(words: list[str], public: Public) -> list[str]:
    """The words of [`public_command`]."""
    kept, skip = [], False
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            skip = bool((LEFT_OUT.fullmatch(name) and name != "config") or is_secret_name(name))
        if not skip:
            flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
            kept.append(f"{flag}{equals}{_public_word(value, public)}")
    return kept


def _public_word(text: str, public: Public) -> str:
    if not text.lstrip().startswith(("{", "[")):
        return public.text(text)
    try:
        return json.dumps(public.value(json.loads(text)))
    except (json.JSONDecodeError, RecursionError):
        return "[...]" if text.lstrip().startswith("[") else "{...}"
