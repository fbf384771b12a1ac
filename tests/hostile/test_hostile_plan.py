"""What `trl-credit plan` reads: runs without rates, and recipes of strangers."""

import json

import pytest
from passes_helpers import with_slow
from script_helpers import error_of

from trl_credit.cli import main
from trl_credit.config import FUNCTION_KNOBS
from trl_credit.settings.arguments import parse_arguments


RUN = {"version": 1, "lives": [{"from": 0, "id": "0"}]}
IDENTITY = {"seed": 0, "batch_size": 64, "generation_batch_size": 64, "num_iterations": 1, "num_generations": 8}
ROW = {"step": 1, "step_time": 1.0, "reward": 0.5, "completions/mean_length": 9.0, "num_tokens": 2000.0}
PHASES = {"credit/seconds/train": 0.5, "credit/seconds/generate": 0.5, "credit/trained_tokens_per_row": 9.0}


def make_run(folder, rows, recipe):
    checkpoint = folder / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    for path in (folder, checkpoint):
        (path / "credit_run.json").write_text(json.dumps(RUN | {"identity": IDENTITY | {"rollouts": "none"}}))
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 1, "max_steps": 1, "log_history": rows}))
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
def test_a_damaged_run_has_no_rates(tmp_path, capsys, rows, recipe, message):
    """What a run of the embedded model leaves that its rates are read from, with something wrong in it."""
    make_run(tmp_path / "run", rows, recipe)
    assert message in error_of(main, ["plan", "embedded", "--rates_from", tmp_path / "run"], capsys)


STRANGER = {
    "credit": "algo: grpo\ncredit: {f}",
    "selector": "algo: s_trace\nselector: {f}",
    "token_mask": "algo: grpo\ntoken_mask: {f}",
    "baseline": "algo: grpo\nbaseline: {f}",
    "segmentation": "algo: spo_chain\nsegmentation: {f}",
    "step_splitter": "algo: vine_ppo\nstep_splitter: {f}",
    "reward": "algo: grpo\nreward: ['{f}']",
    "module": "algo: grpo\ncredit: theirs.f",
}


@pytest.mark.parametrize("knob", with_slow(STRANGER, "baseline", "selector", "token_mask", "step_splitter"))
@pytest.mark.hostile("recipes of strangers", "survived")
def test_a_recipe_is_read_without_running_its_code(command_said, tmp_path, monkeypatch, knob):
    """Only training runs the functions that a recipe names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert {"reward", "module", *FUNCTION_KNOBS} == set(STRANGER)
    (tmp_path / "theirs.py").write_text(
        "open('ran', 'w').close()\n\ndef f(*args, **kwargs):\n    raise SystemExit(3)\n"
    )
    (tmp_path / "theirs.yaml").write_text(STRANGER[knob].format(f="theirs.py:f"))
    said = [
        command_said(*words.split())
        for words in (
            "plan theirs.yaml",
            "plan --config theirs.yaml --json",
            "plan --help",
            "plan theirs.yaml --help",
            "train --config theirs.yaml --help",
            "recipes",
            "recipes theirs",
        )
    ]
    assert [code for code, _, _ in said] == [0, 0, 0, 0, 0, 0, 1], said
    assert "tokens" in said[0][1] and not (tmp_path / "ran").exists()
    make_run(tmp_path / "run", [ROW | PHASES], (tmp_path / "theirs.yaml").read_text())
    command_said("plan", "embedded", "--rates_from", "run")
    assert not (tmp_path / "ran").exists()
    if knob not in ("reward", "module"):  # a configuration in Python looks its functions up
        with pytest.raises(ValueError, match="theirs"):
            parse_arguments(["--config", "theirs.yaml", f"--{knob}", "theirs.py:g"])
        assert (tmp_path / "ran").exists()
