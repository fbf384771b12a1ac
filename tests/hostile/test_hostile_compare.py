"""Hostile input to `trl-credit compare`: flags, files of settings, logs of runs, and texts in a report."""

import json
import re

import pytest
from comparison_helpers import IDENTITY

from trl_credit.lab.comparison.pages import Heading, Items, Picture, Table, Text, as_html, as_markdown


@pytest.fixture
def refused(command_said):
    """Runs `trl-credit compare`, which must print one line and exit with code 2; returns the line."""

    def run(*argv: object) -> str:
        code, _, error = command_said("compare", *argv)
        assert code == 2 and error.startswith("error: ") and error.count("\n") == 1
        return error

    return run


MISTAKES = [
    ([], "there is nothing to compare"),
    (["--algo", "s_trac"], "'s_trac' is no algorithm: did you mean 's_trace'?"),
    (["--algo", "grpo", "grpo"], "'grpo' is given twice"),
    (["--algo", "s_trace --selector random"], "give it a name, NAME=s_trace --selector random"),
    (["--algo", "a/b=grpo"], "the name 'a/b' is also a folder's"),
    (["--algo", "grpo", "--seeds", "1", "1"], "--seeds names a seed twice"),
    (["--algo", "grpo", "--seeds", "x"], "--seeds: invalid int value: 'x'"),
    (["--algo", "grpo", "--jobs", "0"], "--jobs must be at least 1"),
    (["--algo", "grpo", "--seed", "3"], "--seed is set by the comparison for each run"),
    (["--algo", "grpo", "--push_to_hub", "true"], "a comparison pushes nothing"),
    (["--algo", "grpo", "--save_strategy", "no"], "grpo: save_strategy='no' leaves no checkpoint"),
    (["--algo", "grpo", "--lerning_rate", "1"], "grpo: unknown flag '--lerning_rate': did you mean '--learning_rate'?"),
    (["--algo", "grpo", "--baseline", "gspo"], "--baseline 'gspo' is not among the algorithms"),
    (["--algo", "grpo", "--config", "none.yaml"], "there is no file 'none.yaml'"),
    (["--credit", "none.py:f"], "f: credit"),
    (["--runs", "none"], "there is no folder 'none'"),
    (["--runs", "none", "--algo", "grpo"], "--runs trains nothing: leave out --algo"),
    (["--runs", "none", "--beta", "0"], "--runs trains nothing: leave out --beta"),
]


@pytest.mark.hostile("mistakes on the command line", "refused")
@pytest.mark.parametrize(("argv", "message"), MISTAKES)
def test_a_mistake_is_one_line(refused, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*argv)
    assert not (tmp_path / "comparison" / "grid.json").exists()


ROW = {"step": 1, "reward": 0.5, "step_time": 1.0}
LOGS = {
    "no identity": ({}, {"log_history": [ROW], "max_steps": 1}),
    "no steps": (IDENTITY, {"log_history": [{"reward": 0.5, "step_time": 1.0}], "max_steps": 1}),
    "a step in words": (IDENTITY, {"log_history": [ROW | {"step": "one"}], "max_steps": 1}),
    "rows that are no mappings": (IDENTITY, {"log_history": [["step_time"]], "max_steps": 1}),
    "no history": (IDENTITY, {"max_steps": 1}),
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
@pytest.mark.parametrize("text", ["", "[]", '{"version": 9, "runs": {}}', '{"version": 1, "runs": {"a": 3}}'])
def test_a_damaged_list_of_runs(refused, text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    assert "grid.json is damaged" in refused("--algo", "grpo", "--output_dir", tmp_path)
    assert (tmp_path / "grid.json").read_text() == text


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("push_to_hub: true", "push_to_hub in own.yaml: a comparison pushes nothing"),
        ("data_seed: 3", "data_seed in own.yaml: --seeds has a seed for each run"),
        ("beta: much", "grpo: beta in own.yaml: invalid float value: 'much'"),
        ("lerning_rate: 1", "grpo: unknown field 'lerning_rate' in own.yaml: did you mean 'learning_rate'?"),
        ("save_strategy: 'no'", "grpo: save_strategy='no' leaves no checkpoint"),
    ],
)
def test_files_of_settings(refused, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"trace_lambda: 0.5\n{line}\n")  # which GRPO does not have
    assert message in refused("--algo", "grpo", "--config", "own.yaml")


@pytest.mark.hostile("rollout logs", "survived")
def test_texts_stay_texts(record_property):
    texts = [
        "<script>x</script>",
        "<img src=x onerror=alert(1)>",
        "a|b",
        "[x](javascript:alert(1))",
        "`",
        "*b*",
        "{{ 7 }}",
    ]
    record_property("tried", len(texts))
    blocks = [Heading(" ".join(texts), 1), *map(Text, texts), Items(texts), Table(texts, [texts])]
    blocks += [Picture("x", texts[1], texts[0])]
    page = as_html(blocks, {("x", False): "<svg/>", ("x", True): "<svg/>"})
    assert "<script" not in page and "<img src=x" not in page and page.count("{{ 7 }}") == 6
    markdown = as_markdown(blocks, folder="figures")
    assert not re.search(r"(?<!\\)[<>]", markdown) and not re.search(r"(?<!\\)\](?=\(javascript)", markdown)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line.startswith("|")} == {8}
