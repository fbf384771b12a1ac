"""Files that are there whole or not at all, also after a loss of power."""

import errno
import os
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Writes a text file, whole or not at all, and waits until the disk has it."""
    path = Path(path)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    put_in_place(partial, path)


def put_in_place(partial: Path, path: Path) -> None:
    """Moves a file that has been written to its place, and waits until the disk has both."""
    _flush(partial)
    partial.replace(path)
    if os.name == "posix":  # where a folder is a file that can be flushed, with the names in it
        try:
            _flush(path.parent)
        except OSError as error:
            if error.errno not in _NO_FOLDERS:
                raise


_NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)  # of mounts that flush files alone


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
