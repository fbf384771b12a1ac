"""Files that are written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from trl_credit.support.files import atomic_file, write_atomically


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A loss of power leaves the old file or the new one."""
    done = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: (done.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("name"), replace(self, to))[1])
    write_atomically(tmp_path / "state.json", "{}")
    assert done == ["sync", "name", "sync"]  # the content, the name, the folder that holds it


def test_folders_that_cannot_be_flushed(tmp_path, monkeypatch):
    """On mounts of object stores only files can be flushed."""
    fsync = os.fsync

    def files_alone(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr("os.fsync", files_alone)
    write_atomically(tmp_path / "state.json", "τ")
    assert (tmp_path / "state.json").read_text(encoding="utf-8") == "τ"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="broken off"), atomic_file(path) as partial:
        partial.write_bytes(b"ne")
        raise RuntimeError("broken off")
    assert path.read_text() == "old"
