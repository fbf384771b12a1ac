"""A run from which `trl-credit plan` cannot read rates."""

import json

import pytest
from script_helpers import error_of

from trl_credit.cli import main


RUN = {"version": 1, "lives": [{"from": 0, "id": "0"}]}
IDENTITY = {"seed": 0, "batch_size": 64, "generation_batch_size": 64, "num_iterations": 1, "num_generations": 8}
ROW = {"step": 1, "step_time": 1.0, "reward": 0.5, "completions/mean_length": 9.0, "num_tokens": 2000.0}
PHASES = {"credit/seconds/train": 0.5, "credit/seconds/generate": 0.5, "credit/trained_tokens_per_row": 9.0}


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
    checkpoint = tmp_path / "run" / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    for path in (checkpoint.parent, checkpoint):
        (path / "credit_run.json").write_text(json.dumps(RUN | {"identity": IDENTITY | {"rollouts": "none"}}))
    state = {"global_step": 1, "max_steps": 1, "log_history": rows}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    if recipe is not None:
        (tmp_path / "run" / "recipe.yaml").write_text(recipe)
    assert message in error_of(main, ["plan", "embedded", "--rates_from", tmp_path / "run"], capsys)
