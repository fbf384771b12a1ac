"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from trl_credit.support.files import atomic_file, inside, write_atomically


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A loss of power leaves the old file or the new one."""
    done = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: (done.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("name"), replace(self, to))[1])
    write_atomically(tmp_path / "state.json", "{}")
    assert done == ["sync", "name"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="broken off"), atomic_file(path) as partial:
        partial.write_bytes(b"ne")
        raise RuntimeError("broken off")
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("target", ["there", "gone"])
def test_nothing_is_written_through_a_link(tmp_path, target):
    (tmp_path / "there").write_text("mine")
    (tmp_path / "state.json").symlink_to(tmp_path / target)
    with pytest.raises(OSError, match=r"state.json is a link to .*, and nothing is written through a link: remove it"):
        write_atomically(tmp_path / "state.json", "{}")
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "gone").exists()


def test_folders_below_that_of_a_run_are_no_links(tmp_path):
    (tmp_path / "elsewhere" / "logs").mkdir(parents=True)
    (tmp_path / "run").symlink_to("elsewhere")  # as a link to a scratch disk is
    assert inside(tmp_path / "run", "logs", "new") == tmp_path / "run" / "logs" / "new"
    (tmp_path / "elsewhere" / "away").symlink_to(tmp_path)
    with pytest.raises(OSError, match="away is a link"):
        inside(tmp_path / "run", "away", "logs")
