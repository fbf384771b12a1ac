"""What of a run's settings may be shown to others: what somebody chose, without secrets and without this machine."""

import json
import os
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import fields
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml
from huggingface_hub import get_token
from transformers import TrainingArguments

from ..config import CreditConfig
from ..demo import demo_model_path
from ..names import method_label, source_of, source_of_object
from .describe import function_name


# of this machine, of its accounts, or of nothing but the display
LEFT_OUT = re.compile(
    r"output_dir|logging_dir|run_name|report_to|project|trackio_\w+|hub_\w+|push_to_hub\w*|resume_from_checkpoint|"
    r"vllm_server_\w+|vllm_group_port|local_rank|ddp_\w+|disable_tqdm|log_level\w*|cache_dir|\w*_dir|config"
)
SECRET = re.compile(r"(?i)(^|_)(token|secret|password|passwd|credentials?|api_?key|access_?key)$")
DERIVED = ("generation_batch_size",)  # which the configuration sets from the others
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")


def changed(settings: Any, *, always: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that differ from its defaults, and those named in `always`, as YAML can hold them.

    `None` and what is `LEFT_OUT` are not among them. Absolute paths keep their last part alone.
    """
    if isinstance(settings, TrainingArguments):
        default = type(settings)(output_dir=settings.output_dir, report_to="none")
    else:
        default = type(settings)()
    result = {}
    for name in (f.name for f in fields(settings) if f.init):
        value = getattr(settings, name)
        if value is None or name in DERIVED or LEFT_OUT.fullmatch(name) or SECRET.search(name):
            continue
        if name in always or value != getattr(default, name):
            result[name] = _plain(value)
    if result.get("importance") == result.get("importance_sampling_level") and "top_entropy_quantile" not in result:
        result.pop("importance_sampling_level", None)  # which our own knob sets, unless TRL's two were meant together
    return result


def to_yaml(recipe: dict[str, Any]) -> str:
    """`name: value` lines, which `--config` takes back."""
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=100)


def function_comments(args: CreditConfig, *, method: Callable | None = None) -> str:
    """A YAML comment for each function of the run's own that credit is made by: its file and the SHA-256 of that file
    (of its own source where there is none), as it was loaded. `method` is a subclass's own `credit`."""
    lines = []
    if method is not None:
        source = source_of_object(method, method_label(method))
        file = source.file.name if source.file is not None else "no file"
        lines.append(f"# credit: {source.name} of {file}, SHA-256 {source.digest}\n")
    for knob, name in args.own_functions().items():
        text = f"{knob}: {function_name(name)}"
        try:
            source = source_of(name, what=knob)
            text += f" of {source.file.name if source.file is not None else 'no file'}, SHA-256 {source.digest}"
        except ValueError:
            text += ", whose file is gone"
        # a name may hold line ends and what YAML takes for no text
        lines.append(f"# {''.join(c if c.isprintable() else '?' for c in text)}\n")
    return "".join(lines)


def public_command(words: list[str]) -> str:
    """A command line for a shell, without flags that are `LEFT_OUT` or secret, and without folders.

    `words` begin with the script. JSON is shown without what is `LEFT_OUT` or secret in it; what begins like JSON and
    is none, as `{...}` or `[...]`.
    """
    kept, skip = [], False
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            skip = bool((LEFT_OUT.fullmatch(name) and name != "config") or SECRET.search(name))
        if not skip:
            flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
            kept.append(f"{flag}{equals}{_public_value(value)}")
    return shlex.join(kept)


def scrub(text: str, *, secrets: list[str | None]) -> str:
    """`text` without any secret: those given, the Hub's token in use, and what the environment calls one."""
    known = {*secrets, get_token(), *(value for name, value in os.environ.items() if SECRET.search(name))}
    for secret in sorted(filter(None, known), key=len, reverse=True):
        if len(secret) >= 8:  # shorter ones would be found in any text
            text = text.replace(secret, "(removed)")
    return TOKEN.sub("(removed)", text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        shown = {str(k): v for k, v in value.items() if v is not None}
        return {k: _plain(v) for k, v in shown.items() if not (SECRET.search(k) or LEFT_OUT.fullmatch(k))}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    return _public_text(str(value))


def _public_value(text: str) -> str:
    if not text.lstrip().startswith(("{", "[")):
        return _public_text(text)
    try:
        return json.dumps(_plain(json.loads(text)))
    except (json.JSONDecodeError, RecursionError):
        return "[...]" if text.lstrip().startswith("[") else "{...}"


def _public_text(text: str) -> str:
    name, equals, value = text.partition("=")  # as in --env NAME=value
    if not equals:
        return without_folders(text)
    return f"{without_folders(name)}={'(removed)' if SECRET.search(name) else without_folders(value)}"


def without_folders(text: str) -> str:
    """The last part of a path from outside of this folder; `demo` for the embedded model; other text as it is."""
    if text == demo_model_path():
        return "demo"
    path = PurePath(text)
    away = path.is_absolute() or ".." in path.parts or text.startswith(("~", "file:"))
    return path.name if away else text
