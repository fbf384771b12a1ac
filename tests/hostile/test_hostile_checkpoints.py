"""Checkpoints that are damaged, incomplete, of another layout, or already at their end."""

import shutil
from functools import partial

import pytest
import trl
from run_helpers import SAVES, refused, survived
from transformers import TrainerCallback
from weight_helpers import same_weights

from trl_credit.runs.checkpoints import check_layout, last_checkpoint, read_run, read_state


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "reference model"])
def test_what_is_missing_is_a_warning(make_trainer, tmp_path, caplog, name):
    reference = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1}  # never in a file
    settings = reference if name == "reference model" else {}
    make_trainer("grpo", max_steps=1, **settings, **SAVES).train()
    (tmp_path / "run" / "checkpoint-1" / name).unlink(missing_ok=name == "reference model")
    make_trainer("grpo", max_steps=2, **settings, **SAVES).train(resume_from_checkpoint=True)
    assert f"has no {name}: " in caplog.text


pytestmark = survived
LAYOUTS = [
    ("global_step1/zero_pp_rank_0_mp_rank_00_model_states.pt", "ZeRO-3", "plain"),
    ("global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", "ZeRO-1 or ZeRO-2", "plain"),
    ("optimizer.bin", "FSDP", "plain"),
    ("optimizer_0/__0_0.distcp", "FSDP", "plain"),
    ("optimizer.pt", "plain", "ZeRO-3"),
]


@refused
@pytest.mark.parametrize(("file", "there", "here"), LAYOUTS)
def test_an_optimizer_in_another_layout(tmp_path, file, there, here):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(ValueError, match=f"layout {there}, and this run has layout {here}: "):
        check_layout(tmp_path, here=here)
    check_layout(tmp_path, here=there)


DAMAGED = ['{"version": "one", "parts": {}}', '{"version": null}', '{"parts": {}}', "[" * 10**5, "\x00", "", "[]", "{"]


@refused
@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file(tmp_path, text):
    for name in ("credit_state.json", "credit_run.json"):
        (tmp_path / name).write_text(text)
    readers = {"credit_state": partial(read_state, needed={}), "credit_run": read_run}
    for name, read in readers.items():
        with pytest.raises(ValueError, match=f"^.*{name}.json is damaged.*$") as error:
            read(tmp_path)
        assert "\n" not in str(error.value)


@refused
def test_a_checkpoint_with_other_files(make_trainer, tmp_path):
    settings = {**SAVES, "tree_branching": [3, 2], "replay_cap": 1, "max_completion_length": 6}
    make_trainer("spo_tree", max_steps=1, **settings).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    path = checkpoint / "replay.safetensors"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[: len(whole) // 2]), path.unlink):
        damage()
        with pytest.raises(ValueError, match="does not fit rollouts='tree'"):
            make_trainer("spo_tree", max_steps=2, **settings).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_plain_trl(make_trainer, trained, tmp_path, caplog):
    make_trainer((trl.GRPOConfig, trl.GRPOTrainer), max_steps=1, **SAVES).train()
    with pytest.raises(ValueError, match="no identity.*choose another"):
        make_trainer("grpo", max_steps=1, **SAVES).train()
    assert trained("grpo", max_steps=2, **SAVES, resume=True).state.global_step == 2
    assert "holds no identity" in caplog.text
    for step in (2, 1):
        assert last_checkpoint(tmp_path / "run").name == f"checkpoint-{step}"
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")


def test_a_kill_while_an_old_checkpoint_is_overwritten(make_trainer, tmp_path, monkeypatch):
    """The last file of the old checkpoint must not mark the mixture as complete."""
    make_trainer("grpo", max_steps=1, **SAVES).train()
    again = make_trainer("grpo", max_steps=1, **SAVES)

    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(again, "_save_optimizer_and_scheduler", killed)
    with pytest.raises(KeyboardInterrupt):
        again.train()
    assert last_checkpoint(tmp_path / "run") is None


def test_a_finished_run_is_left_as_it_is(make_trainer, trained, tmp_path, caplog):
    done = trained("ha_dw", max_steps=2, **SAVES)
    again = make_trainer("ha_dw", max_steps=2, **SAVES)
    assert not same_weights(again, done)
    output = again.train(resume_from_checkpoint=True)
    assert "already at step 2 of 2" in caplog.text and output.global_step == 2
    assert same_weights(again, done)  # saving it now changes nothing
    assert again.difficulty.state_dict() == done.difficulty.state_dict()
    assert not again.is_in_train and last_checkpoint(tmp_path / "run").name == "checkpoint-2"


class StopInside(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_stopped_inside_of_the_first_step(make_trainer):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = make_trainer("grpo", trainer_kwargs={"callbacks": [StopInside()]}, **settings)
    assert trainer.train().global_step == 0  # not "the rows ended"
