"""`examples/evaluate.py` as a user runs it, and invalid input."""

import pytest
from script_helpers import error_of
from scripts import load_script


script = load_script("examples/evaluate.py")


@pytest.fixture
def call(here):
    return lambda *argv: script.main([*map(str, argv), "--quiet"])


@pytest.mark.slow
def test_the_script_with_defaults(call, tmp_path, capsys):
    call("--max_problems", 8)
    shown = capsys.readouterr().out
    assert "| embedded model | " in shown and "demo pass@16 (demo)" in shown
    files = {p.name for p in (tmp_path / "evaluation").iterdir()}
    assert files == {"evaluation.json", "evaluation.md", "evaluation.png", "samples"}
    assert str(tmp_path) not in (tmp_path / "evaluation" / "evaluation.json").read_text()
    call("--rescore", "--metrics", "pass@1")
    assert "pass@16" not in capsys.readouterr().out


def test_more_than_one_process_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "an evaluation is one process" in error_of(script.main, [], capsys)
