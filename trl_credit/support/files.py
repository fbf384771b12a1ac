"""Files that are written whole or not at all, also when the power fails; what is read is bounded; paths are shown.

A folder may come from somebody else. So a file is written under a name that nobody can guess, through no link.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


LARGEST_JSON, LARGEST_LINES = 1 << 30, 1 << 32  # bytes; the log of a long run has some 100 MB


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically: a crash leaves the old or the new content. Makes its folder. Text is UTF-8."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yields the path of an empty partial file, `.NAME.….partial`, which replaces `path` after the block, when the disk
    holds its content. An error removes it, and a killed process leaves it.

    Raises:
        OSError: `path` is a link.
    """
    path = refuse_link(path)
    partial = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.partial")
    # fails for any file or link of that name; unlike `mkstemp`, with the permissions of other new files
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield partial
        with open(partial, "rb+") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # in its message; a write has none
        raise


def refuse_link(path: str | Path) -> Path:
    """The path of a file that will be written. Raises `OSError` if it is a link, which may lead out of its folder."""
    if os.path.islink(path):
        raise OSError(f"{path} is a link to {os.readlink(path)}, and nothing is written through a link: remove it")
    return Path(path)


def inside(folder: str | Path, *parts: str) -> Path:
    """A folder below the folder of a run, which may be a link itself. Raises `OSError` if one of `parts` is a link."""
    path = Path(folder)
    for part in parts:
        path = refuse_link(path / part)
    return path


def check_size(path: str | Path, *, largest: int = LARGEST_LINES) -> None:
    """Raises `ValueError` for a file of more than `largest` bytes, and `OSError` if there is none."""
    if os.path.getsize(path) > largest:
        raise ValueError(f"{path} is larger than {largest:,} bytes: it is damaged, or not what its name says")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: it is not JSON, nested too deep, or larger than `LARGEST_JSON`.
        OSError: the file cannot be read.
    """
    check_size(path, largest=LARGEST_JSON)
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON, or nested too deep: {error}") from error


def named_path(word: str | Path) -> tuple[str, str]:
    """The name and the path in NAME=PATH; "" and the path in a word that is a path. Raises `ValueError` without one of
    both."""
    if Path(word).exists() or "=" not in str(word):
        return "", str(word)
    name, _, path = str(word).partition("=")
    if not name or not path:
        raise ValueError(f"{str(word)!r} lacks a name or a folder: write NAME=FOLDER")
    return name, path


def short_path(path: str | Path) -> Path:
    """A path for people: relative where it lies in the working folder."""
    try:
        return Path(path).relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # it lies elsewhere, or the working folder is gone
        return Path(path)
