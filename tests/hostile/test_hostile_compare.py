"""Hostile input to `trl-credit compare`: flags, files of settings, logs of runs, and texts in a report."""

import json
import re

import pytest
from comparison_helpers import IDENTITY, history
from script_helpers import error_of

from trl_credit.cli.compare import main
from trl_credit.lab.comparison.groups import make_group
from trl_credit.lab.comparison.report import as_html, as_markdown
from trl_credit.lab.comparison.results import make_results


@pytest.fixture
def refused(capsys):
    """The line with which `trl-credit compare` stops."""
    return lambda *argv: error_of(main, argv, capsys)


ROW = {"step": 1, "reward": 0.5, "step_time": 1.0}
LOGS = {
    "no identity": ({}, {"log_history": [ROW], "max_steps": 1}),
    "a step in words": (IDENTITY, {"log_history": [ROW | {"step": "one"}], "max_steps": 1}),
    "rows that are no mappings": (IDENTITY, {"log_history": [["step_time"]], "max_steps": 1}),
    "batches of nothing": (IDENTITY | {"generation_batch_size": 0}, {"log_history": [ROW], "max_steps": 1}),
    "a reward of NaN": (IDENTITY, {"log_history": [ROW | {"reward": float("nan")}], "max_steps": 1}),
}


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_run_that_is_damaged(refused, name, tmp_path):
    identity, state = LOGS[name]
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    record = {"version": 1, "identity": identity, "lives": [{"from": 0, "id": "a"}]}
    for folder in (run, run / "checkpoint-1"):
        (folder / "credit_run.json").write_text(json.dumps(record))
    (run / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state | {"global_step": 1}))
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


@pytest.mark.hostile("rollout logs", "survived")
def test_texts_stay_texts(record_property):
    text = "<script>x</script><img src=x onerror=alert(1)>a|b[x](javascript:alert(1))`*b*{{ 7 }}"
    groups = [make_group(label, [history([0.5], algorithm=label)]) for label in ("GRPO", text)]
    results = make_results(groups, groups[0], metric=text, command="trl-credit compare", remarks=[text])
    page = as_html(results, dict.fromkeys(["differences", "steps", "prompts", "generated", "trained", "seconds"], ""))
    assert "<script" not in page and "<img src=x" not in page and "{{ 7 }}" in page
    markdown = as_markdown(results)
    assert not re.search(r"(?<!\\)[<>]", markdown) and not re.search(r"(?<!\\)\](?=\(javascript)", markdown)
    record_property("tried", 1)
