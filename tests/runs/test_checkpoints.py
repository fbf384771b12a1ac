"""Checkpoints are taken between generation batches, where a resumed run equals an uninterrupted one to the last bit."""

import json
from pathlib import Path

import pytest
from conftest import sums
from custom_functions import args_of
from group_helpers import SMALL
from passes_helpers import with_slow
from processes import results, run
from transformers import TrainerCallback, TrainerControl
from weight_helpers import same_weights, untimed
from worker import logged

from trl_credit.rollouts.prompts import PROMPT_RATES_FILE
from trl_credit.runs.boundaries import CheckpointBoundaries
from trl_credit.runs.checkpoints import VERSION, is_complete, last_checkpoint, read_state, write_state


# two prompts of four responses feed four optimizer steps
BATCH = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "save_strategy": "steps"}


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


class SaveAtStep2(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 2


def test_checkpoints_due_inside_a_batch_are_taken_at_its_end(make_trainer, tmp_path):
    callbacks = {"callbacks": [SaveAtStep2()]}
    make_trainer("ha_dw", max_steps=8, save_steps=7, trainer_kwargs=callbacks, **BATCH).train()
    assert checkpoints(tmp_path / "run") == [4, 8]


EPOCHS = {"num_train_epochs": 3, "max_steps": -1}
SIGNAL = {**SMALL, "max_steps": 5, "groups": "refill"}
CHAIN = {"rollouts": "chain", "rollouts_per_state": 2, "segmentation": "fixed_length", "segment_length": 3}
# algorithm, the checkpoint from which another run goes on, and settings
RESUMED = {
    "belief": ("ha_dw", 4, {**BATCH, "max_steps": 8}),
    "several updates": ("ha_dw", 4, {**BATCH, "max_steps": 8, "gradient_accumulation_steps": 2, "num_iterations": 2}),
    "statistics": ("clip_cov", 2, {"steps_per_generation": 2, "max_steps": 6, "cov_range": [0, 9.0], "cov_share": 0.3}),
    # TRL's sampler alone would start with the order of the first epoch again
    "within an epoch": ("grpo", 3, {**EPOCHS, "n_prompts": 4}),
    "between epochs": ("grpo", 4, {**EPOCHS, "n_prompts": 4}),
    # 3, 3 and 2 micro-batches in an epoch
    "windows": ("grpo", 6, {**EPOCHS, **BATCH, "n_prompts": 5, "gradient_accumulation_steps": 3}),
    "replace": ("base", 3, {**SIGNAL, "groups": "replace"}),
    "difficulty and refill": ("base", 3, {**SIGNAL, "prompt_sampler": "difficulty", "retire_above": 0.9}),
    "chain by advantage": ("base", 3, {**SIGNAL, "group_signal": "advantage", "loss_type": "dapo", **CHAIN}),
    "tree": ("base", 3, {**SIGNAL, "rollouts": "tree", "loss_type": "dapo"}),
}


@pytest.mark.parametrize("case", with_slow(RESUMED, *RESUMED.keys() - {"statistics"}))
def test_resumed_is_uninterrupted(trained, tmp_path, case):
    algo, step, settings = RESUMED[case]
    settings = {**settings, "save_strategy": "steps", "save_steps": 1}
    reference = trained(algo, output_dir=str(tmp_path / "reference"), **settings)
    resumed = trained(algo, **settings, resume=str(tmp_path / "reference" / f"checkpoint-{step}"))
    last = resumed.state.global_step
    assert last == reference.state.global_step > step and same_weights(reference, resumed)
    assert untimed(logged(reference)) == untimed(logged(resumed))
    if algo == "ha_dw":
        assert checkpoints(tmp_path / "reference") == [4, 8]
        assert reference.difficulty.state_dict() == resumed.difficulty.state_dict()
        assert len(reference.difficulty.state_dict()["beliefs"]) == 2  # one for each batch
    files = [tmp_path / name / f"checkpoint-{last}" / PROMPT_RATES_FILE for name in ("run", "reference")]
    has_rates = settings.get("groups") == "refill"
    assert [path.exists() for path in files] == [has_rates] * 2
    if has_rates:
        assert len({path.read_bytes() for path in (*files, tmp_path / "run" / PROMPT_RATES_FILE)}) == 1


def test_the_end_of_a_run_inside_a_batch_moves_the_belief_once(trained, tmp_path, caplog):
    settings = {**BATCH, "save_steps": 4}
    short = trained("ha_dw", max_steps=6, **settings)
    assert checkpoints(tmp_path / "run") == [4, 6]  # the last step is always saved
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "credit_state.json").read_text())
    assert state["position"] == [2, 4]
    longer = trained("ha_dw", max_steps=8, **settings, resume=True)
    assert "inside a generation batch" in caplog.text
    assert longer.difficulty.state_dict()["beliefs"] == short.difficulty.state_dict()["beliefs"]


def test_a_delayed_checkpoint_of_an_interrupted_training_is_dropped():
    args = args_of(per_device_train_batch_size=8, steps_per_generation=4)
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


# The state in checkpoints, which of them are complete, and runs that are killed during a save


NEEDED = {"difficulty": "difficulty='history'"}


def test_a_state_that_cannot_be_resumed_is_named_with_the_fix(tmp_path):
    assert read_state(tmp_path, needed={})["parts"] == {}  # a checkpoint of plain TRL
    with pytest.raises(ValueError, match=r"credit_state.json holds no state for difficulty='history'"):
        read_state(tmp_path, needed=NEEDED)
    write_state(tmp_path, {"parts": {"difficulty": {"beliefs": [0.1, 0.2]}}})
    assert read_state(tmp_path, needed=NEEDED)["parts"] == {"difficulty": {"beliefs": [0.1, 0.2]}}
    write_state(tmp_path, {"parts": {"replay": {}}})
    with pytest.raises(ValueError, match="holds no state for difficulty='history'"):
        read_state(tmp_path, needed=NEEDED)
    with pytest.raises(ValueError, match="would lose .replay."):
        read_state(tmp_path, needed={})
    (tmp_path / "credit_state.json").write_text(json.dumps({"version": VERSION + 1, "parts": {}}))
    with pytest.raises(ValueError, match="newer trl_credit"):
        read_state(tmp_path, needed={})


def test_the_last_checkpoint_is_the_last_complete_one(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step, text in ((2, '{"global_step": 2}'), (10, '{"global_step": 10}'), (11, '{"global_st'), (12, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if text is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert not is_complete(tmp_path / "checkpoint-11") and not is_complete(tmp_path / "nowhere")


def test_a_refused_resume_leaves_the_folder_as_it_was(make_trainer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1}
    make_trainer("ha_dw", max_steps=2, **settings).train()
    run_file = tmp_path / "run" / "credit_run.json"
    before, first = run_file.read_bytes(), tmp_path / "run" / "checkpoint-1"
    (first / "credit_state.json").unlink()
    with pytest.raises(ValueError, match="no state for difficulty"):
        make_trainer("ha_dw", max_steps=3, **settings).claim_output_dir(first)  # as the command does, before train()
    assert run_file.read_bytes() == before
    assert last_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-2"


@pytest.mark.slow
def test_kills_lose_no_checkpoint(tmp_path):
    (result,) = results(run("run_kills.py", tmp_path / "run", 12))
    steps = result["steps"]
    assert len(steps) == 12 and steps == sorted(set(steps))  # every resume continued from the save before
    assert result["half_written"] > 0  # or no kill hit a save, and nothing was shown
