"""What cannot be compared: settings, logs and samples of runs, by `trl-credit compare` and `trl-credit eval A B`."""

import json
from pathlib import Path

import pytest
from comparison_helpers import IDENTITY
from evaluation_helpers import sample_file, stored
from script_helpers import error_of

from trl_credit.cli import main


pytestmark = pytest.mark.hostile("data files", "refused")


@pytest.fixture
def refused(capsys):
    """The line with which `trl-credit compare` stops."""
    return lambda *argv: error_of(main, ["compare", *argv], capsys)


ROW = {"step": 1, "reward": 0.5, "step_time": 1.0}
LOGS = {
    "no identity": ({}, [ROW]),
    "rows that are no mappings": (IDENTITY, [["step_time"]]),
    "a reward of NaN": (IDENTITY, [ROW | {"reward": float("nan")}]),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_run_that_is_damaged(refused, name, tmp_path):
    identity, log = LOGS[name]
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    record = {"version": 1, "identity": identity, "lives": [{"from": 0, "id": "a"}]}
    for folder in (run, run / "checkpoint-1"):
        (folder / "credit_run.json").write_text(json.dumps(record))
    state = {"log_history": log, "max_steps": 1, "global_step": 1}
    (run / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    assert str(run) in refused("--runs", run, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out" / "report.md").exists()


LISTS = ["", "[]", '{"version": 9, "primary": "end", "runs": {}}', '{"version": 2, "runs": {}}']


@pytest.mark.parametrize("text", LISTS)
def test_a_damaged_list_of_runs(refused, text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    assert "grid.json is damaged" in refused("--algo", "grpo", "--output_dir", tmp_path)
    assert (tmp_path / "grid.json").read_text() == text


SETTINGS = [
    ("push_to_hub: true", "push_to_hub in own.yaml"),
    ("beta: much", "grpo: beta in own.yaml"),
    ("lerning_rate: 1", "grpo: unknown field 'lerning_rate' in own.yaml: did you mean 'learning_rate'?"),
    ("save_strategy: 'no'", "grpo: save_strategy"),
]


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize(("line", "message"), SETTINGS)
def test_files_of_settings(refused, line, message, here):
    (here / "own.yaml").write_text(f"trace_lambda: 0.5\n{line}\n")  # which GRPO does not have
    assert message in refused("--algo", "grpo", "--config", "own.yaml")


# Samples

RIGHT, WRONG = [[True, False]] * 6, [[False, False]] * 6
# changes of the header or of a problem's line → words of the message
CASES = [
    ({"temperature": 0.6}, {}, "temperature is 1.0 and 0.6"),
    ({"reward": "mine.py:f", "reward_source": "mine.py:f 0"}, {}, "reward is 'accuracy' and 'mine.py:f'"),
    ({"set_name": "gsm8k"}, {}, "only b has gsm8k (demo)"),
    ({"ids": list("uvwxyz")}, {}, "no problem id in common"),
    ({"metrics": ["maj@2"]}, {}, "give --metrics pass@1"),
    ({"problems": 7}, {}, "is not finished"),
    ({}, {"reference": {"answer": "3"}}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"prompt": "another"}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"samples": []}, "problem 'p2' has not 2 samples"),
    ({}, {"samples": [{"correct": 1}, {"correct": True}]}, "problem 'p2' has not 2 samples with a verdict"),
    ({}, {"samples": [{}, {"correct": True}]}, "problem 'p2' has not 2 samples with a verdict"),
]


@pytest.mark.hostile("comparisons", "refused")
@pytest.mark.parametrize(("header", "line", "words"), CASES)
def test_samples_that_cannot_be_compared(here, capsys, header, line, words):
    stored("a", "a", RIGHT)
    path = sample_file(stored("b", "b", WRONG, **header))
    lines = path.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), **line})
    path.write_text("\n".join(lines) + "\n")
    before = sorted(Path(".").rglob("*"))
    assert words in error_of(main, ["eval", "a", "b"], capsys)
    assert sorted(Path(".").rglob("*")) == before
