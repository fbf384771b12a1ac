"""Values as they may be shown to others: without secrets, and of paths the last part alone."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ..demo import demo_model_path
from .secrets import Secrets, is_secret_name


_PART = r"[^\s/\\\"'`<>|,;{}]"  # a letter of a folder's name
_PATHS = re.compile(
    r"(?<![A-Za-z])file:[^\s\"'<>]+"
    # C:\…, C:/… and \\server\…, with spaces in the names of folders
    rf"|(?<![A-Za-z0-9])(?:[A-Za-z]:\\+|[A-Z]:/)(?:[^\n/\\\"'`<>|,;:*?{{}}]+[/\\]+)+{_PART}*"
    rf"|(?<![\w\\}}])\\\\+{_PART}+\\+(?:[^\n/\\\"'`<>|,;:*?{{}}]+\\+)*{_PART}*"
    rf"|(?<![\w/.~\\)}}\]>$-])~[\w.-]*[/\\]{_PART}*(?:[/\\]{_PART}+)*"
    rf"|(?<![\w./\\-])[\w./\\-]*(?<!\.)\.\.[/\\](?:{_PART}|[/\\])*"
    rf"|(?<![\w/.~\\)}}\]>$-])/(?:(?:home|Users)/[^\n/\"'`<>|,;:{{}}]+/)?(?:{_PART}+/+)+{_PART}*"
    r"|(?<![\w/.~\\)}\]>$-])/(?:home|Users)/[\w.-]+"
)
_HOME = re.compile(r"(?:(?:[A-Za-z]:)?[/\\]+(?:home|Users)[/\\]+[^/\\]+|~[\w.-]*)[/\\]*")


class Public:
    """Removes secrets and folders from values.

    Args:
        *settings:
            Mappings and texts that hold secrets of the run, as for [`Secrets`].
    """

    def __init__(self, *settings: Any) -> None:
        self._secrets = Secrets(*settings)

    def text(self, text: str) -> str:
        """A text without secrets, and without the folders of paths to outside of the working folder."""
        if text == demo_model_path():
            return "demo"
        text = self._secrets.scrub(text)
        return self._secrets.scrub(_without_folders(text))  # the last part of a path may be a secret

    def value(self, value: Any) -> Any:
        """A value that YAML and JSON can hold. Mappings lose keys that name a secret or a folder."""
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        if isinstance(value, Mapping):
            kept = {str(k): v for k, v in value.items() if not (is_secret_name(str(k)) or str(k).endswith("_dir"))}
            return {self.text(k): self.value(v) for k, v in kept.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.value(v) for v in value]
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        return self.text(str(value))


def _without_folders(text: str) -> str:
    """The last part of each path to outside of the working folder: absolute, `~`, `..`, of Windows, or `file:`."""
    if _is_path(text):
        return _last_part(text)
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w/.\\-]){re.escape(home)}(?![\w.-])", "~", text)
    return _PATHS.sub(lambda found: _last_part(found[0]), text)


def _is_path(text: str) -> bool:
    """Whether a text is one path, which may have spaces in it."""
    if "\n" in text or "://" in text.removeprefix("file://"):
        return False
    if re.match(r"file:|~[\w.-]*(?:[/\\]|$)|\.\.[/\\]|[A-Za-z]:\\|[A-Z]:/|\\\\|[\w.-]+(?:/[\w.-]+)*/\.\./", text):
        return True
    return text.startswith("/") and "{" not in text and text.count("/") > 1


def _last_part(path: str) -> str:
    path = path.removeprefix("file:")
    return "~" if _HOME.fullmatch(path) else re.split(r"[/\\]+", path.rstrip("/\\"))[-1]
