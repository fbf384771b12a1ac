"""Files that are written whole or not at all, also when the power fails; and how paths are shown."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


_CANNOT_FLUSH = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)  # of mounts on which folders have no fsync


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically: a crash leaves the old or the new content. Makes its folder. Text is UTF-8."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yields the path of a partial file, which replaces `path` after the block, when the disk holds its content."""
    path = Path(path)
    partial = path.with_suffix(".partial")
    yield partial
    _flush(partial)
    partial.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        try:
            _flush(path.parent)
        except OSError as error:
            if error.errno not in _CANNOT_FLUSH:
                raise


def short_path(path: str | Path) -> Path:
    """A path for people: relative where it lies in the working folder."""
    try:
        return Path(path).relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # it lies elsewhere, or the working folder is gone
        return Path(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
