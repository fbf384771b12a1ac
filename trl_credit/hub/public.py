"""Removes secrets and folders from values that others may see. Of a path only the last part is kept.

A secret is recognized by the name of its setting, by its value or by its shape. Secrets are removed from texts, and
searched for in files.
"""

import html
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from huggingface_hub import get_token

from ..demo import task_of_model


REMOVED = "(removed)"
SHORTEST = 8  # characters; any text would hold a shorter one

_NAME = (
    r"(?:(?i:[\w.-]*(?:password|passwd|passphrase)|(?:[\w.-]*[_.-])?(?:token|secret|pwd|credentials?|authorization|"
    r"api[_-]?key|(?:access|private|secret|auth|signing)[_-]?key))(?:_?\d+)?"
    r"|[\w.-]*[a-z0-9](?:Token|Secret|Credentials?|ApiKey|AccessKey))"
)
_OF_TEXT = re.compile(r"(?i).*(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|think|image|audio|video|max|min|num|per)_token")
_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[\w-]{20,}"
    r"|(?<![A-Za-z0-9])sk-(?:proj|ant|svcacct|admin|or|None)-[\w-]{20,}"
    r"|(?<![A-Za-z0-9])sk-(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{20,}"
    r"|(?<![A-Za-z0-9])A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,}"
    r"|-----\s*BEGIN[A-Z\s]*PRIVATE\s+KEY(?:\s+BLOCK)?\s*-----(?:[\s\S]*?-----\s*END[A-Z\s]*-----|[\s\S]*)"
)
_LOGIN = re.compile(r"(?<=://)([^\s/?#\"'<>:]*)(:?)([^\s/\"'<>]*)@")
# a password may hold any sign, so a value ends at the next assignment
_NEXT = r"(?![,;&]\s*[\"']?[\w.-]+[\"']?\s*[=:])"
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_.-])(?P<name>{_NAME})(?P<sign>[\"']?\s*(?:=|:(?!//))\s*)"
    rf"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|(?<==)(?:{_NEXT}\S)+|(?<!=)(?:{_NEXT}[^\n])+)"
)
_HARMLESS = re.compile(r"(?i)\(removed\)|\{\w*\}|\{\{|<|(?:null|none|true|false|~|\d{1,5})(?=\s|$)")


def is_secret_name(name: str) -> bool:
    """Whether a field, a key or an environment variable of this name holds a secret: `hub_token`, `apiKey`."""
    return re.fullmatch(_NAME, name) is not None and _OF_TEXT.fullmatch(name) is None


class Secrets:
    """Finds and removes secrets: the Hub's token in use, values whose name in the environment or in settings is that of
    a secret, and what has the shape of one.

    Args:
        *settings:
            Secrets, and mappings: values under a secret's name and passwords in addresses are secrets, also in nested
            lists and mappings.
    """

    def __init__(self, *settings: Any) -> None:
        environment = (value for name, value in os.environ.items() if is_secret_name(name) and name != "PWD")
        given = [value for value in settings if isinstance(value, str)]
        named = (value for part in settings if isinstance(part, Mapping) for value in _named(part, ""))
        known = {*given, get_token(), *environment, *named}
        values = {value.strip() for value in known if value and len(value.strip()) >= SHORTEST}
        self._values = sorted(values, key=len, reverse=True)  # a longer one may contain a shorter one
        self._bare = {value: _without_quotes(_without_escapes(value)) for value in self._values}

    def scrub(self, text: str) -> str:
        """`text`, before it is escaped or quoted, with `(removed)` in place of secrets."""
        for value in self._values:
            text = text.replace(value, REMOVED)
        text = _SHAPES.sub(REMOVED, text)
        text = _LOGIN.sub(f"{REMOVED}@", text)
        text = _ASSIGNED.sub(_without_value, text)
        return REMOVED if self.found_in(text) else text

    def found_in(self, text: str, *, vocabulary: bool = False) -> bool:
        """Whether `text` holds a secret, also behind the escapes of Markdown, HTML, JSON, YAML, shells and addresses.

        A `vocabulary` has all words, so known secrets of letters alone are not looked for in it.
        """
        forms = {text, html.unescape(text), unquote(text), html.unescape(unquote(text))} if not vocabulary else {text}
        plain = [_without_escapes(form) for form in forms]
        if any(_SHAPES.search(form) or _has_password(form) for form in (text, *plain)):
            return True
        bare = [_without_quotes(form) for form in plain]
        for value, short in self._bare.items():
            if not (vocabulary and value.isalpha()):
                if value in text or (len(short) >= SHORTEST - 2 and any(short in form for form in bare)):
                    return True
        return False


def _named(value: Any, name: str) -> Iterator[str]:
    """Values under a secret's name, and passwords in addresses, of nested settings."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        if is_secret_name(name):
            yield str(value)
        yield from (login[3] for login in _LOGIN.finditer(str(value)) if login[2])
    elif isinstance(value, (Mapping, list, tuple, set)):
        for key, part in value.items() if isinstance(value, Mapping) else ((name, part) for part in value):
            yield from _named(part, str(key))


def _without_value(found: re.Match) -> str:
    if not is_secret_name(found["name"]) or _HARMLESS.match(found["value"]):
        return found[0]
    closing = re.search(r"[}\])\s]*$", found["value"])[0] if found["value"][0] not in "\"'" else ""
    return f"{found['name']}{found['sign']}{REMOVED}{closing}"


def _has_password(text: str) -> bool:
    return any(login[1] and login[3] and login[3] != REMOVED for login in _LOGIN.finditer(text) if login[2])


def _without_escapes(text: str) -> str:
    text = re.sub(r"\\\r?\n[ \t]*(?:\\(?= ))?", "", text)  # a YAML line that continues in the next
    text = re.sub(r"\\+(?:U([0-9a-fA-F]{8})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))", _char, text)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins the surrogate pairs of JSON
    return html.unescape(re.sub(r"\\+[nrtfbe]", "\n", text)).replace("\\", "")


def _char(found: re.Match) -> str:
    code = int(next(filter(None, found.groups())), 16)
    return chr(code) if code < 0x110000 else found[0]


def _without_quotes(text: str) -> str:
    """The text without quotation marks and white space, which quoting and folding may add."""
    return re.sub(r"[\s\"'`]+", "", text)


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
        if task := task_of_model(text):
            return task.name
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
