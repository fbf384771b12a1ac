"""Values and texts that others may see: without tokens and folders, and as plain text in Markdown. Of a path only the
last part is kept."""

import html
import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from ..demo import task_of_model


_MARKDOWN = re.compile(r"([\\`*_\[\]#|~$!])")

REMOVED = "(removed)"
_SHORTEST = 8  # characters of a token; any text would hold a shorter one
_VARIABLE = re.compile(r"(?i).*(?:token|secret|password|key)")  # names of variables of the environment
_SETTING = re.compile(r"(?i)(?:(?:hub|hf|auth|access|api)_)?token|(?:.*_)?(?:secret|password|api_?key)|.*_dir")
_SHAPES = re.compile(r"\b(?:hf_|api_org_|gh[pousr]_|github_pat_|glpat-|sk-(?:proj|ant)-|xox[a-z]-|AKIA)[\w-]{16,}")

_PART = r"[^\s/\\\"'`<>|,;{}]"  # a letter of a folder's name
_PATH = re.compile(
    rf"(?<![\w/.\\)}}\]<>$~-])(?:file:[/\\]*|(?:~[\w.-]*|\.\.|[A-Za-z]:)[/\\]|/(?={_PART}+/))(?:{_PART}*[/\\])*{_PART}*"
)


class Public:
    """Removes tokens and folders from values.

    Args:
        *tokens (`str` or `None`):
            Tokens besides those that this process knows: the Hub's, and variables of the environment whose name ends in
            TOKEN, SECRET, PASSWORD or KEY.
    """

    def __init__(self, *tokens: str | None) -> None:
        known = {*tokens, get_token(), *(value for name, value in os.environ.items() if _VARIABLE.fullmatch(name))}
        values = {value.strip() for value in known if value and len(value.strip()) >= _SHORTEST}
        self._tokens = sorted(values, key=len, reverse=True)  # a longer one may contain a shorter one

    def holds_token(self, text: str) -> bool:
        """Whether a text holds a token, as it is: known to this process, or of a known shape."""
        return any(token in text for token in self._tokens) or _SHAPES.search(text) is not None

    def text(self, text: str) -> str:
        """A text without tokens, and without the folders of paths to outside of the working folder."""
        if task := task_of_model(text):
            return task.name
        for token in self._tokens:
            text = text.replace(token, REMOVED)
        return _without_folders(_SHAPES.sub(REMOVED, text))

    def value(self, value: Any) -> Any:
        """A value that YAML and JSON can hold. Mappings lose keys that name a secret or a folder."""
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.value(v) for k, v in value.items() if not _SETTING.fullmatch(str(k))}
        if isinstance(value, (list, tuple, set)):
            return [self.value(v) for v in value]
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        return self.text(str(value))


def _without_folders(text: str) -> str:
    """The last part of each path to outside of the working folder: absolute, `~`, `..`, of Windows, or `file:`."""
    if text.startswith("/") and text.count("/") > 1 and not re.search(r"[\n{]", text):
        return _last_part(text)  # one path, which may have spaces in it
    text = text.replace(str(Path.home()), "~")
    return _PATH.sub(lambda match: _last_part(match[0]), re.sub(r"(?<![\w.])/(?:home|Users)/[\w.-]+", "~", text))


def _last_part(path: str) -> str:
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


# Markdown


def escape(text: str) -> str:
    """A text on one line in which nothing is HTML or Markdown."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def fenced(text: str, language: str) -> str:
    """A code block that `text` cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def without_html(text: str) -> str:
    """Markdown with its headings at the third level, without HTML and pictures."""
    text = re.sub(r"^#+", "###", text, flags=re.MULTILINE)
    replaced = {"<": "&lt;", r"\<": "&lt;", "![": r"\!["}
    # a backslash stays with what it escapes: a second backslash would undo the first
    return re.sub(r"\\.|<|!\[", lambda match: replaced.get(match[0], match[0]), text)
