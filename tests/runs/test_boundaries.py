"""Checkpoints are taken between generation batches, where a resumed run equals an uninterrupted one to the last bit."""

import json
from pathlib import Path

import pytest
from conftest import sums
from custom_functions import config
from transformers import TrainerCallback, TrainerControl
from weight_helpers import same_weights

from trl_credit.runs.boundaries import CheckpointBoundaries


# two prompts of four responses feed four optimizer steps
BATCH = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "save_strategy": "steps"}


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def position(checkpoint: Path) -> list[int]:
    return json.loads((checkpoint / "credit_state.json").read_text())["position"]


class SaveAtStep2(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 2


def test_checkpoints_due_inside_a_batch_are_taken_at_its_end(make_trainer, tmp_path):
    callbacks = {"callbacks": [SaveAtStep2()]}
    make_trainer("ha_dw", max_steps=8, save_steps=7, trainer_kwargs=callbacks, **BATCH).train()
    assert checkpoints(tmp_path / "run") == [4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2, "num_iterations": 2}])
def test_resumed_is_uninterrupted(make_trainer, trained, tmp_path, settings):
    settings = {**BATCH, "save_steps": 1, "max_steps": 8, "lr_scheduler_type": "constant", **settings}
    reference = trained("ha_dw", output_dir=str(tmp_path / "reference"), **settings)
    make_trainer("ha_dw", **{**settings, "max_steps": 4}).train()
    resumed = trained("ha_dw", **settings, resume=True)
    assert resumed.state.global_step == 8 and checkpoints(tmp_path / "run") == [4, 8]
    assert same_weights(reference, resumed)
    assert reference.difficulty.state_dict() == resumed.difficulty.state_dict()
    assert len(reference.difficulty.state_dict()["beliefs"]) == 2  # one for each batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ({"n_prompts": 4}, 3),
        ({"n_prompts": 4}, 4),
        ({"n_prompts": 5, **BATCH, "gradient_accumulation_steps": 3}, 6),  # 3, 3 and 2 micro-batches in an epoch
    ],
    ids=["within", "between", "windows"],
)
def test_epochs_after_a_resume_have_their_own_order(trained, tmp_path, settings, at):
    """TRL's sampler alone would start with the order of the first epoch again."""
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3, "max_steps": -1, **settings}
    reference = trained("grpo", output_dir=str(tmp_path / "reference"), **settings)
    resumed = trained("grpo", **settings, resume=str(tmp_path / "reference" / f"checkpoint-{at}"))
    assert resumed.state.global_step == reference.state.global_step > at and same_weights(reference, resumed)


def test_the_end_of_a_run_inside_a_batch_moves_the_belief_once(trained, tmp_path, caplog):
    settings = {**BATCH, "save_steps": 4}
    short = trained("ha_dw", max_steps=6, **settings)
    assert checkpoints(tmp_path / "run") == [4, 6]  # the last step is always saved
    assert position(tmp_path / "run" / "checkpoint-6") == [2, 4]
    longer = trained("ha_dw", max_steps=8, **settings, resume=True)
    assert "inside a generation batch" in caplog.text
    assert longer.difficulty.state_dict()["beliefs"] == short.difficulty.state_dict()["beliefs"]


def test_a_delayed_checkpoint_of_an_interrupted_training_is_dropped(tmp_path):
    args = config(tmp_path, per_device_train_batch_size=8, steps_per_generation=4)
    boundaries, control = CheckpointBoundaries(args), TrainerControl(should_save=True)
    boundaries.after_update(1, control=control)
    assert not control.should_save
    boundaries.begin()
    boundaries.after_update(4, control=control)
    assert not control.should_save


def test_the_best_checkpoint_is_the_one_that_was_evaluated(trained, tmp_path):
    steps = {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward", "per_device_eval_batch_size": 4}
    trainer = trained("grpo", trainer_kwargs={"eval_dataset": sums(64).select(range(2))}, **steps, **best, **BATCH)
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    assert evaluated == [4, 8] == checkpoints(tmp_path / "run")
    assert trainer.state.best_model_checkpoint is not None
