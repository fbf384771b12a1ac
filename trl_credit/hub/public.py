"""What of a run's values may be shown to others: without secrets, and of paths the last part alone."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ..demo import demo_model_path
from .secrets import Secrets, is_secret_name


# of this machine, of its accounts, or of nothing but the display
LEFT_OUT = re.compile(
    r"output_dir|logging_dir|run_name|report_to|project|trackio_\w+|hub_\w+|push_to_hub\w*|resume_from_checkpoint|"
    r"overwrite_output_dir|allow_changed|"
    r"vllm_server_\w+|vllm_group_port|local_rank|ddp_\w+|disable_tqdm|log_level\w*|cache_dir|\w*_dir|config"
)
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
    """Makes values public.

    Args:
        secrets ([`Secrets`]):
            Those of the run.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets

    def text(self, text: str) -> str:
        """A text without secrets, and without the folders of paths to outside of the working folder."""
        if text == demo_model_path():
            return "demo"
        text = self.secrets.scrub(text)
        return self.secrets.scrub(without_folders(text))  # a name that was a path's last part

    def value(self, value: Any) -> Any:
        """What YAML and JSON can hold: mappings lose keys that name a secret, or that are `LEFT_OUT`."""
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        if isinstance(value, Mapping):
            kept = {str(k): v for k, v in value.items() if not (is_secret_name(str(k)) or LEFT_OUT.fullmatch(str(k)))}
            return {self.text(k): self.value(v) for k, v in kept.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.value(v) for v in value]
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        return self.text(str(value))


def without_folders(text: str) -> str:
    """The last part of each path to outside of the working folder: absolute, `~`, `..`, of Windows, or `file:`."""
    if _is_path(text):
        return _last_part(text)
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w/.\\-]){re.escape(home)}(?![\w.-])", "~", text)
    return _PATHS.sub(lambda found: _last_part(found[0]), text)


def _is_path(text: str) -> bool:
    """Whether all of a text is one path, which may have spaces in it."""
    if "\n" in text or "://" in text.removeprefix("file://"):
        return False
    if re.match(r"file:|~[\w.-]*(?:[/\\]|$)|\.\.[/\\]|[A-Za-z]:\\|[A-Z]:/|\\\\", text):
        return True
    if re.match(r"[\w.-]+(?:/[\w.-]+)*/\.\./", text):
        return True
    return text.startswith("/") and "{" not in text and text.count("/") > 1


def _last_part(path: str) -> str:
    path = path.removeprefix("file:")
    return "~" if _HOME.fullmatch(path) else re.split(r"[/\\]+", path.rstrip("/\\"))[-1]
