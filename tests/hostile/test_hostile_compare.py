"""Hostile input to `trl-credit compare`: flags, files of settings, and logs of runs."""

import json

import pytest
from comparison_helpers import IDENTITY
from script_helpers import error_of

from trl_credit.cli.compare import main


@pytest.fixture
def refused(capsys):
    """The line with which `trl-credit compare` stops."""
    return lambda *argv: error_of(main, argv, capsys)


ROW = {"step": 1, "reward": 0.5, "step_time": 1.0}
LOGS = {
    "no identity": ({}, [ROW]),
    "rows that are no mappings": (IDENTITY, [["step_time"]]),
    "a reward of NaN": (IDENTITY, [ROW | {"reward": float("nan")}]),
}


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_run_that_is_damaged(refused, name, tmp_path):
    identity, log = LOGS[name]
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    record = {"version": 1, "identity": identity, "lives": [{"from": 0, "id": "a"}]}
    for folder in (run, run / "checkpoint-1"):
        (folder / "credit_run.json").write_text(json.dumps(record))
    (run / "checkpoint-1" / "trainer_state.json").write_text(
        json.dumps({"log_history": log, "max_steps": 1, "global_step": 1})
    )
    assert str(run) in refused("--runs", run, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out" / "report.md").exists()


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 9, "primary": "area", "runs": {}}', '{"version": 2, "runs": {}}']
)
def test_a_damaged_list_of_runs(refused, text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    assert "grid.json is damaged" in refused("--algo", "grpo", "--output_dir", tmp_path)
    assert (tmp_path / "grid.json").read_text() == text


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("push_to_hub: true", "push_to_hub in own.yaml"),
        ("beta: much", "grpo: beta in own.yaml"),
        ("lerning_rate: 1", "grpo: unknown field 'lerning_rate' in own.yaml: did you mean 'learning_rate'?"),
        ("save_strategy: 'no'", "grpo: save_strategy"),
    ],
)
def test_files_of_settings(refused, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"trace_lambda: 0.5\n{line}\n")  # which GRPO does not have
    assert message in refused("--algo", "grpo", "--config", "own.yaml")
