"""Mistakes in what `trl-credit plan` is given: one line, and nothing printed beside it."""

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["s_trace/qwen3_4b_s_trace"], "no configuration of 'Qwen/Qwen3-4B' is in a folder or in the cache of the Hub"),
        (["s_trace/qwen3_4b_s_trac"], "did you mean 's_trace/qwen3_4b_s_trace'?"),
        (["embedded", "--parameters", "1.5B"], "set --layers"),
        (
            ["embedded", "--parameters", "many", "--layers", "2", "--hidden_size", "8"],
            "such as 1.5B or 350M, got 'many'",
        ),
        (["embedded", "--parameters", "1M", "--layers", "2", "--hidden_size", "512"], "--parameters 1M is too few"),
        (["embedded", "--layers", "3"], "--layers goes with --parameters"),
        (["embedded", "--num_processes", "0"], "--num_processes must be at least 1, got 0"),
        (["embedded", "--num_processes", "two"], "--num_processes: invalid int value: 'two'"),
        (["embedded", "--tflops", "-3"], "--tflops must be above 0 and finite, got -3"),
        (["embedded", "--response_length", "nan"], "--response_length must be above 0"),
        (["embedded", "--response_lenght", "3"], "unknown flag '--response_lenght': did you mean '--response_length'?"),
        (["embedded", "--rates_from", "runs/none"], "there is no folder 'runs/none'"),
        (["embedded", "--rates_from", "a", "--tflops", "3"], "--rates_from has rates: leave out --tflops"),
        (["embedded", "--accelerate_config", "zero9"], "--accelerate_config 'zero9' is neither a file nor a name"),
    ],
)
@pytest.mark.hostile("mistakes on the command line", "refused")
def test_a_mistake_is_one_line(plan_said, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    code, out, error = plan_said(*argv)
    assert code == 2 and error.startswith("error: ") and message in error and error.count("\n") == 1 and not out


RUN = {"version": 1, "lives": [{"from": 0, "id": "0"}]}
IDENTITY = {"seed": 0, "batch_size": 64, "generation_batch_size": 64, "num_iterations": 1, "num_generations": 8}
ROW = {"step": 1, "step_time": 1.0, "reward": 0.5, "completions/mean_length": 9.0, "num_tokens": 2000.0}
PHASES = {"credit/seconds/train": 0.5, "credit/seconds/generate": 0.5, "credit/trained_tokens_per_row": 9.0}


def leave_run(folder: Path, rows: list[dict], recipe: str | None) -> None:
    """What a run of the embedded model leaves that its rates are read from."""
    checkpoint = folder / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    for path in (folder, checkpoint):
        (path / "credit_run.json").write_text(json.dumps(RUN | {"identity": IDENTITY | {"rollouts": "none"}}))
    state = {"global_step": 1, "max_steps": 1, "log_history": rows}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe)


@pytest.mark.parametrize(
    ("rows", "recipe", "message"),
    [
        ([ROW], "algo: grpo", "has no credit/seconds/…: train some steps with this version"),
        ([ROW | PHASES], None, "has no recipe.yaml"),
        ([ROW | PHASES], "algo: [", "cannot be read as YAML"),
        ([ROW | PHASES], "per_device_train_batch_size: 56", "is of another run than its log"),
        ([{"step": 1, "step_time": 1.0, "reward": 1.0} | PHASES], "algo: grpo", "is damaged"),
        ([ROW | PHASES | {"credit/seconds/train": "long"}], "algo: grpo", "is damaged"),
    ],
    ids=["an older log", "no recipe", "a broken recipe", "another recipe", "no lengths", "words"],
)
@pytest.mark.hostile("data files", "refused")
def test_a_damaged_run_has_no_rates(plan_said, tmp_path, rows, recipe, message):
    leave_run(tmp_path / "run", rows, recipe)
    code, out, error = plan_said("embedded", "--rates_from", tmp_path / "run")
    assert code == 2 and message in error and error.count("\n") == 1 and not out
