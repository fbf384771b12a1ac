"""Checkpoints are taken between generation batches, where a resumed run is the uninterrupted one to the last bit."""

import json
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback, TrainerControl

from trl_credit import CreditConfig
from trl_credit.trainer.borders import Borders


# two prompts of four responses feed four optimizer steps
BATCH = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "save_strategy": "steps"}


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def weights(trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Ask(TrainerCallback):
    """For a checkpoint at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == self.step


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({}, 1),
        ({"steps_per_generation": 4}, 4),
        ({"steps_per_generation": 4, "num_iterations": 2}, 8),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, 2),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4}, 1),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, 3),
    ],
)
def test_from_one_border_to_the_next(tmp_path, settings, updates):
    config = CreditConfig(output_dir=str(tmp_path), per_device_train_batch_size=8, report_to="none", **settings)
    assert Borders(config).updates == updates


def test_save_steps_are_rounded_up_and_said_once(make_trainer, tmp_path, caplog):
    trainer = make_trainer("ha_dw", max_steps=8, save_steps=3, **BATCH)
    assert caplog.text.count("save_steps 3 → 4") == 1
    trainer.train()
    assert checkpoints(tmp_path / "run") == [4, 8]
    caplog.clear()
    assert make_trainer("ha_dw", save_steps=8, **BATCH).args.save_steps == 8 and "save_steps" not in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2, "steps_per_generation": 2},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 2},
    ],
    ids=["steps", "iterations", "windows"],
)
def test_resumed_is_uninterrupted(make_trainer, tmp_path, settings):
    settings = {**BATCH, "save_steps": 1, "max_steps": 8, "lr_scheduler_type": "constant", **settings}
    whole = make_trainer("ha_dw", output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    make_trainer("ha_dw", **{**settings, "max_steps": 4}).train()
    resumed = make_trainer("ha_dw", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8 and checkpoints(tmp_path / "run") == [4, 8]
    assert equal(weights(whole), weights(resumed))
    assert whole.difficulty.state_dict() == resumed.difficulty.state_dict()
    assert len(whole.difficulty.state_dict()["beliefs"]) == 2  # one for each batch


@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ({"n_prompts": 4}, 3),
        ({"n_prompts": 4}, 4),
        ({"n_prompts": 5, **BATCH, "gradient_accumulation_steps": 3}, 6),  # 3, 3 and 2 micro-batches in an epoch
    ],
    ids=["within", "between", "windows"],
)
def test_epochs_after_a_resume_have_their_own_order(make_trainer, tmp_path, settings, at):
    """TRL's sampler alone would begin with the order of the first epoch again."""
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3, "max_steps": -1, **settings}
    whole = make_trainer("grpo", output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer("grpo", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    assert resumed.state.global_step == whole.state.global_step > at and equal(weights(whole), weights(resumed))


def test_a_checkpoint_asked_for_inside_a_batch_is_taken_at_its_end(make_trainer, tmp_path):
    trainer = make_trainer("ha_dw", max_steps=8, save_steps=8, trainer_kwargs={"callbacks": [Ask(2)]}, **BATCH)
    trainer.train()
    assert checkpoints(tmp_path / "run") == [4, 8]


def test_the_end_of_a_run_inside_a_batch_moves_the_belief_once(make_trainer, tmp_path, caplog):
    settings = {**BATCH, "save_steps": 4}
    short = make_trainer("ha_dw", max_steps=6, **settings)
    short.train()
    assert checkpoints(tmp_path / "run") == [4, 6]  # what has been trained is kept, wherever it ends
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "credit_state.json").read_text())
    assert state["position"] == [2, 4]
    longer = make_trainer("ha_dw", max_steps=8, **settings)
    longer.train(resume_from_checkpoint=True)
    assert "inside a generation batch" in caplog.text
    assert longer.difficulty.state_dict()["beliefs"] == short.difficulty.state_dict()["beliefs"]
    # and from then on as ever: the next batch begins where it would have
    caplog.clear()
    longest = make_trainer("ha_dw", max_steps=12, **settings)
    longest.train(resume_from_checkpoint=True)
    assert "inside" not in caplog.text
    assert len(longest.difficulty.state_dict()["beliefs"]) == 3


def test_saves_of_the_best_stay_where_it_is_evaluated(tmp_path):
    steps = {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 5, "save_steps": 10}
    settings = {"per_device_train_batch_size": 8, "steps_per_generation": 4, "report_to": "none"}
    config = CreditConfig(output_dir=str(tmp_path), load_best_model_at_end=True, **steps, **settings)
    assert Borders(config).rounded == "save_steps 10 → 16, eval_steps 5 → 8"  # 12 would never be evaluated


class InterruptInside(TrainerCallback):
    """Once, as Ctrl-C in a notebook does."""

    is_armed = True

    def on_substep_end(self, args, state, control, **kwargs):
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt


def test_what_was_due_is_forgotten(tmp_path):
    """A checkpoint that an interrupted train() put off is not taken by the next one."""
    config = CreditConfig(output_dir=str(tmp_path), per_device_train_batch_size=8, steps_per_generation=4)
    borders, control = Borders(config), TrainerControl(should_save=True)
    borders.after_update(1, control=control)
    assert not control.should_save
    borders.begin()
    borders.after_update(4, control=control)
    assert not control.should_save


def test_training_anew_after_an_interruption_begins_at_a_border(make_trainer, tmp_path):
    settings = {**BATCH, "gradient_accumulation_steps": 4, "save_steps": 1, "max_steps": 2}
    trainer = make_trainer("ha_dw", trainer_kwargs={"callbacks": [InterruptInside()]}, **settings)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train()
    assert checkpoints(tmp_path / "run") == [1, 2]
    state = json.loads((tmp_path / "run" / "checkpoint-1" / "credit_state.json").read_text())
    assert state["position"] == [0, 4]


def test_the_best_checkpoint_is_the_one_that_was_evaluated(make_trainer, tmp_path):
    trainer = make_trainer(
        "grpo",
        max_steps=8,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
        per_device_eval_batch_size=4,
        trainer_kwargs={"eval_dataset": make_trainer("grpo").train_dataset.select(range(2))},
        **BATCH,
    )
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_reward" in row]
    assert evaluated == [4, 8] == checkpoints(tmp_path / "run")
    assert trainer.state.best_model_checkpoint is not None
