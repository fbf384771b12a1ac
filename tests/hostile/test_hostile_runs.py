"""Runs that would mislead: nothing to train, and the folder, checkpoint or settings of another run."""

import shutil
from pathlib import Path

import datasets
import pytest
from run_helpers import SAVES, length_reward, refused, survived
from transformers import AutoTokenizer
from weight_helpers import same_weights

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.hub import write_model_card
from trl_credit.runs.checkpoints import last_checkpoint


@refused
@pytest.mark.parametrize(
    ("settings", "n_prompts", "message"),
    [
        ({"steps_per_generation": 4}, 3, "3 rows, and one generation batch takes 8 prompts .*at least 8 rows"),
        ({}, 1, "1 rows, and one generation batch takes 2 prompts"),
    ],
)
def test_nothing_to_train(make_trainer, tmp_path, settings, n_prompts, message):
    trainer = make_trainer("grpo", n_prompts=n_prompts, **settings)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert list((tmp_path / "run").iterdir()) == []  # neither weights nor a record


@refused
def test_a_stream_too_short_for_a_step(make_trainer):
    trainer = make_trainer("grpo", n_prompts=64)
    rows = [{"prompt": "1+1=", "answer": "2"}]
    trainer.train_dataset = datasets.IterableDataset.from_generator(lambda: iter(rows))
    with pytest.raises(ValueError, match="the data ended too soon, and one generation batch takes 2 prompts"):
        trainer.train()


@refused
@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("p_trace", {}, "algorithm GRPO → P-trace.*importance token → eligible"),
        ("grpo", {"seed": 7}, "seed 42 → 7"),
        ("grpo", {"learning_rate": 1e-5}, "learning_rate 0.001 → 1e-05"),
        ("grpo", {"beta": 0.1}, "beta 0.0 → 0.1"),
        ("grpo", {"per_device_train_batch_size": 4}, "batch_size 8 → 4"),
        ("grpo", {"n_prompts": 32}, "data.rows 64 → 32"),
        ("grpo", {"model_init_kwargs": {"dtype": "bfloat16"}}, "model.dtype float32 → bfloat16"),
        ("grpo", {"reward_funcs": length_reward}, "reward_funcs.count_a left out, reward_funcs.length_reward added"),
    ],
    ids=["algorithm", "seed", "optimizer", "loss", "batch", "data", "precision", "reward"],
)
def test_another_run_in_the_folder(make_trainer, tmp_path, algo, settings, message):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    before = (tmp_path / "run" / "credit_run.json").read_bytes()
    for resume, more in ((None, "overwrite_output_dir"), (True, 'allow_changed=\\["')):
        other = make_trainer(algo, max_steps=2, **{**SAVES, **settings})
        with pytest.raises(ValueError, match=f"(?s){message}.*{more}"):
            other.train(resume_from_checkpoint=resume)
    assert (tmp_path / "run" / "credit_run.json").read_bytes() == before


@survived
def test_an_allowed_change_is_kept_and_on_the_card(make_trainer, trained, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    allowed = {**SAVES, "learning_rate": 1e-5, "beta": 0.1, "allow_changed": ["learning_rate", "beta"]}
    changed = trained("grpo", max_steps=2, **allowed, resume=True)
    change = "From step 1: learning_rate 0.001 → 1e-05, beta 0.0 → 0.1."
    assert changed.changes_of_run() == [change]
    assert f"* {change}" in write_model_card(changed, name="GRPO").read_text().replace("\\_", "_")
    assert "allow_changed" not in (tmp_path / "run" / "recipe.yaml").read_text()  # it belongs to this resume alone
    # the next resume is compared with this one
    again = trained("grpo", max_steps=3, **{**SAVES, "learning_rate": 1e-5, "beta": 0.1}, resume=True)
    assert again.changes_of_run() == changed.changes_of_run() and again.state.global_step == 3


@refused
@pytest.mark.parametrize(
    ("settings", "resume", "message"),
    [
        ({"allow_changed": ["lerning_rate"]}, True, "lerning_rate.*did you mean 'learning_rate'"),
        ({"allow_changed": ["seed"]}, None, "allow_changed .*there is none"),
        ({"overwrite_output_dir": True}, True, "overwrite_output_dir=True would remove"),
    ],
)
def test_flags_that_cannot_act(make_trainer, settings, resume, message):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    with pytest.raises(ValueError, match=message):
        make_trainer("grpo", max_steps=2, **SAVES, **settings).train(resume_from_checkpoint=resume)


@survived
def test_a_new_seed_over_an_old_run_goes_on_from_its_own_steps(make_trainer, trained, tmp_path):
    make_trainer("grpo", max_steps=4, **SAVES).train()
    second = {**SAVES, "seed": 7}
    make_trainer("grpo", max_steps=2, overwrite_output_dir=True, **second).train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    resumed = trained("grpo", max_steps=3, **second, resume=True)
    whole = trained("grpo", max_steps=3, output_dir=str(tmp_path / "whole"), **second)
    assert same_weights(resumed, whole)


@survived
def test_the_same_run_from_scratch_ignores_older_checkpoints(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=4, **SAVES).train()
    make_trainer("grpo", max_steps=2, **SAVES).train()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-2"  # of 4, which are still there
    # the same holds for an abandoned resume
    make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "two"), **SAVES).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


@refused
def test_no_checkpoint_of_the_run_started_last(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=2, **SAVES).train()
    make_trainer("grpo", max_steps=2, save_strategy="no", lr_scheduler_type="constant").train()
    with pytest.raises(ValueError, match="no complete checkpoint .*started last .*left checkpoint-1, check"):
        make_trainer("grpo", max_steps=3, **SAVES).train(resume_from_checkpoint=True)


@refused
def test_two_runs_at_once(make_trainer, tmp_path):
    holder = make_trainer("grpo", **SAVES)
    holder.claim_output_dir()
    with pytest.raises(ValueError, match="another process is training in output_dir=.*choose another output_dir"):
        make_trainer("grpo", **SAVES).train()  # in this process or another: the lock is a file's
    holder.train()  # its own claim is no obstacle


@survived
def test_settings_that_do_not_change_the_loss_may_change(make_trainer, trained, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    other = {**SAVES, "save_steps": 2, "logging_steps": 5, "reward_timeout": 60.0, "length_sort": "off"}
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}  # the same batch in other pieces
    trainer = trained("grpo", max_steps=2, **other, **cut, resume=True)
    assert trainer.state.global_step == 2 and isinstance(trainer.args, CreditConfig)
    assert isinstance(trainer, CreditTrainer)


@refused
def test_a_checkpoint_from_elsewhere_into_the_folder_of_another_run(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    make_trainer("p_trace", max_steps=2, **SAVES).train()
    checkpoint = str(tmp_path / "one" / "checkpoint-1")
    with pytest.raises(ValueError, match="holds the results of another run.*algorithm P-trace → GRPO"):
        make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=checkpoint)
    # its checkpoints may be removed: the one to resume from is not among them
    make_trainer("grpo", max_steps=2, overwrite_output_dir=True, **SAVES).train(resume_from_checkpoint=checkpoint)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


@refused
def test_a_claim_is_for_one_checkpoint(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    trainer = make_trainer("grpo", max_steps=2, **{**SAVES, "learning_rate": 1e-5})
    trainer.claim_output_dir()
    with pytest.raises(ValueError, match="learning_rate 0.001 → 1e-05"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-1"))
    make_trainer("grpo", max_steps=1, **SAVES).claim_output_dir()  # nothing is held after that


@refused
def test_another_chat_template(make_trainer, tiny_model):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{{ messages[0]['content'] }}!"
    with pytest.raises(ValueError, match=r"differs from this one \(tokenizer.chat_template null → "):
        make_trainer("grpo", max_steps=2, trainer_kwargs={"processing_class": tokenizer}, **SAVES).train(True)


@survived
def test_checkpoints_of_an_abandoned_resume_are_ignored(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=3, **SAVES).train()
    earlier = str(tmp_path / "run" / "checkpoint-1")
    make_trainer("grpo", max_steps=2, **{**SAVES, "save_strategy": "no"}).train(resume_from_checkpoint=earlier)
    assert last_checkpoint(tmp_path / "run") == Path(earlier)  # not 2 and 3, which are still there
