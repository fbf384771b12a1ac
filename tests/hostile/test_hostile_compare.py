"""Hostile input to `trl-credit compare`: words, files of settings, logs of runs, and texts in a report."""

import json
import re

import pytest

from trl_credit import commands
from trl_credit.comparison.pages import Heading, Items, Picture, Table, Text, as_html, as_markdown


@pytest.fixture
def call(capsys):
    """Runs the command in this process: exit code and standard error."""

    def run(*argv: str) -> tuple[int, str]:
        try:
            code = commands.main(["compare", *map(str, argv)])
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().err

    return run


def one_line(error: str) -> bool:
    return error.startswith("error: ") and error.count("\n") == 1


MISTAKES = [
    ([], "there is nothing to compare"),
    (["--algo", "s_trac"], "'s_trac' is no algorithm: did you mean 's_trace'?"),
    (["--algo", "grpo", "grpo"], "'grpo' stands twice"),
    (["--algo", "s_trace --selector random"], "give it a name, NAME=s_trace --selector random"),
    (["--algo", "a/b=grpo"], "the name 'a/b' is one of a folder too"),
    (["--algo", "grpo", "--seeds", "1", "1"], "--seeds names a seed twice"),
    (["--algo", "grpo", "--seeds", "x"], "--seeds must be a whole number, got 'x'"),
    (["--algo", "grpo", "--jobs", "0"], "--jobs must be at least 1"),
    (["--algo", "grpo", "--seed", "3"], "--seed is set by the comparison for each run"),
    (["--algo", "grpo", "--push_to_hub", "true"], "a comparison pushes nothing"),
    (["--algo", "grpo", "--save_strategy", "no"], "grpo: save_strategy='no' leaves no checkpoint"),
    (["--algo", "grpo", "--lerning_rate", "1"], "grpo: unknown flag '--lerning_rate': did you mean '--learning_rate'?"),
    (["--algo", "grpo", "--baseline", "gspo"], "--baseline 'gspo' is not among the algorithms"),
    (["--algo", "grpo", "--config", "none.yaml"], "there is no file 'none.yaml'"),
    (["--credit", "none.py:f"], "f: --credit"),
    (["--runs", "none"], "there is no folder 'none'"),
    (["--runs", "none", "--algo", "grpo"], "--runs trains nothing: leave out --algo"),
    (["--runs", "none", "--beta", "0"], "--runs trains nothing: leave out --beta"),
]


@pytest.mark.hostile("mistakes on the command line", "refused")
@pytest.mark.parametrize(("argv", "message"), MISTAKES)
def test_a_mistake_is_one_line(call, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, error = call(*argv)
    assert code == 2 and one_line(error) and message in error
    assert not (tmp_path / "comparison" / "grid.json").exists()


IDENTITY = {"algorithm": "GRPO", "seed": 0, "rollouts": "none", "batch_size": 8, "generation_batch_size": 8}
IDENTITY |= {"num_iterations": 1, "num_generations": 4}
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
def test_the_log_of_a_run_that_is_damaged(call, name, tmp_path):
    identity, state = LOGS[name]
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    record = {"version": 1, "identity": identity, "lives": [{"from": 0, "id": "a"}]}
    for folder in (run, run / "checkpoint-1"):
        (folder / "credit_run.json").write_text(json.dumps(record))
    (run / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state | {"global_step": 1}))
    code, error = call("--runs", run, "--output_dir", tmp_path / "out")
    assert code == 2 and one_line(error) and str(run) in error
    assert not (tmp_path / "out" / "report.md").exists()


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize("text", ["", "[]", '{"version": 9, "runs": {}}', '{"version": 1, "runs": {"a": 3}}'])
def test_a_damaged_list_of_runs(call, text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    code, error = call("--algo", "grpo", "--output_dir", tmp_path)
    assert code == 2 and one_line(error) and "grid.json is damaged" in error
    assert (tmp_path / "grid.json").read_text() == text


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("push_to_hub: true", "push_to_hub in own.yaml: a comparison pushes nothing"),
        ("data_seed: 3", "data_seed in own.yaml: --seeds has a seed for each run"),
        ("beta: much", "grpo: beta in own.yaml must be a number, got 'much'"),
        ("lerning_rate: 1", "grpo: unknown field 'lerning_rate' in own.yaml: did you mean 'learning_rate'?"),
        ("save_strategy: 'no'", "grpo: save_strategy='no' leaves no checkpoint"),
    ],
)
def test_files_of_settings(call, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(f"trace_lambda: 0.5\n{line}\n")  # which GRPO does not have
    code, error = call("--algo", "grpo", "--config", "own.yaml")
    assert code == 2 and one_line(error) and message in error


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
    assert "<" not in markdown and not re.search(r"(?<!\\)\](?=\(javascript)", markdown)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line.startswith("|")} == {8}
