"""Runs that would lie: nothing to train, another run's folder or checkpoint, damaged and missing files."""

import errno
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer, TrainerCallback

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.hub import write_model_card
from trl_credit.trainer.checkpoints import check_layout, last_checkpoint, read_run, read_state, write_state


KIND = "runs and checkpoints"
refused, survived = pytest.mark.hostile(KIND, "refused"), pytest.mark.hostile(KIND, "survived")
SAVES = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}


def weights(trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def length_reward(completions, scale=1, **kwargs):
    return [scale * len(text) / 8 for text in completions]


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
    with pytest.raises(ValueError, match="the rows ended before one generation batch, of 2 prompts, was full"):
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
        ("grpo", {"reward_funcs": length_reward}, "reward_funcs.count_a SHA-256 .* → null, reward_funcs.length_reward"),
    ],
    ids=["algorithm", "seed", "optimizer", "loss", "batch", "data", "reward"],
)
def test_another_run_in_the_folder(make_trainer, tmp_path, algo, settings, message):
    first = make_trainer("grpo", max_steps=1, **SAVES)
    first.train()
    before = (tmp_path / "run" / "credit_run.json").read_bytes()
    for resume, more in ((None, "overwrite_output_dir"), (True, "--allow_changed ")):
        other = make_trainer(algo, max_steps=2, **{**SAVES, **settings})
        with pytest.raises(ValueError, match=f"(?s){message}.*{more}"):
            other.train(resume_from_checkpoint=resume)
    assert (tmp_path / "run" / "credit_run.json").read_bytes() == before


@survived
def test_a_change_that_is_meant(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    allowed = {**SAVES, "learning_rate": 1e-5, "beta": 0.1, "allow_changed": ["learning_rate", "beta"]}
    changed = make_trainer("grpo", max_steps=2, **allowed)
    changed.train(resume_from_checkpoint=True)
    assert changed.changes_of_run() == ["From step 1: learning_rate 0.001 → 1e-05, beta 0.0 → 0.1."]
    # the next life is compared with the last one
    again = make_trainer("grpo", max_steps=3, **{**SAVES, "learning_rate": 1e-5, "beta": 0.1})
    again.train(resume_from_checkpoint=True)
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
def test_a_new_seed_over_an_old_run_goes_on_from_its_own_steps(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=4, **SAVES).train()
    second = {**SAVES, "seed": 7}
    make_trainer("grpo", max_steps=2, overwrite_output_dir=True, **second).train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    resumed = make_trainer("grpo", max_steps=3, **second)
    resumed.train(resume_from_checkpoint=True)
    whole = make_trainer("grpo", max_steps=3, output_dir=str(tmp_path / "whole"), **second)
    whole.train()
    assert equal(weights(resumed), weights(whole))


@survived
def test_the_same_run_anew_does_not_go_on_from_what_was_there(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=4, **SAVES).train()
    make_trainer("grpo", max_steps=2, **SAVES).train()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-2"  # of 4, which are still there
    # and so it is with a life that was given up
    make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "two"), **SAVES).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


@refused
def test_no_checkpoint_of_the_run_started_last(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=2, **SAVES).train()
    make_trainer("grpo", max_steps=2, save_strategy="no", lr_scheduler_type="constant").train()
    with pytest.raises(ValueError, match="no complete checkpoint .*started last .*Those there .checkpoint-1, check"):
        make_trainer("grpo", max_steps=3, **SAVES).train(resume_from_checkpoint=True)


@refused
def test_two_runs_at_once(make_trainer, tmp_path):
    holder = make_trainer("grpo", **SAVES)
    holder.claim_output_dir()
    with pytest.raises(ValueError, match="another process is training in output_dir=.*choose another output_dir"):
        make_trainer("grpo", **SAVES).train()  # in this process or another: the lock is a file's
    holder.train()  # a claim of one's own is no obstacle


@survived
def test_a_finished_run_is_left_as_it_is(make_trainer, tmp_path, caplog):
    done = make_trainer("ha_dw", max_steps=2, **SAVES)
    done.train()
    again = make_trainer("ha_dw", max_steps=2, **SAVES)
    assert not equal(weights(again), weights(done))
    output = again.train(resume_from_checkpoint=True)
    assert "already at step 2 of 2" in caplog.text and output.global_step == 2
    assert equal(weights(again), weights(done))  # so that what is saved now is what was
    assert again.difficulty.state_dict() == done.difficulty.state_dict()
    assert not again.is_in_train and last_checkpoint(tmp_path / "run").name == "checkpoint-2"


@survived
def test_state_of_an_older_release(make_trainer, tmp_path, caplog):
    make_trainer("ha_dw", max_steps=1, **SAVES).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    (checkpoint / "credit_run.json").unlink()
    (tmp_path / "run" / "credit_run.json").unlink()
    state = json.loads((checkpoint / "credit_state.json").read_text())
    (checkpoint / "credit_state.json").write_text(json.dumps({"version": 1, "parts": state["parts"]}))
    resumed = make_trainer("ha_dw", max_steps=2, **SAVES)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2 and "keeps no identity" in caplog.text
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-2"
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    assert last_checkpoint(tmp_path / "run") == checkpoint


@refused
def test_a_folder_of_an_older_release(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    (tmp_path / "run" / "credit_run.json").unlink()
    with pytest.raises(ValueError, match="checkpoint-1, which keeps no identity .*another output_dir"):
        make_trainer("grpo", max_steps=1, **SAVES).train()


@survived
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_missing_file_is_said(make_trainer, tmp_path, caplog, name):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    (tmp_path / "run" / "checkpoint-1" / name).unlink()
    make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=True)
    assert f"has no {name}: " in caplog.text


@refused
@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["global_step1/zero_pp_rank_0_mp_rank_00_model_states.pt"], "run with DeepSpeed ZeRO-3, which a run without"),
        (["global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt"], "ZeRO-1 or ZeRO-2, which a run without"),
        (["optimizer.bin"], "of a run with FSDP, which a run without"),
        (["optimizer_0/__0_0.distcp"], "of a run with FSDP, which a run without"),
    ],
)
def test_an_optimizer_in_another_layout(make_trainer, tmp_path, files, message):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    (checkpoint / "optimizer.pt").unlink()
    for name in files:
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{message}.*launch as it was launched.*as the model"):
        make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=True)


@refused
@pytest.mark.parametrize(
    ("files", "here", "processes", "message"),
    [
        (["optimizer.pt"], "ZeRO-3", 2, "of a run without DeepSpeed and FSDP, which a run with DeepSpeed ZeRO-3"),
        (["optimizer.pt"], "FSDP", 2, "of a run without DeepSpeed and FSDP, which a run with FSDP"),
        (["optimizer.bin"], "ZeRO-3", 1, "of a run with FSDP, which a run with DeepSpeed ZeRO-3"),
        (
            [
                f"global_step1/zero_pp_rank_{i}_mp_rank_00_{what}_states.pt"
                for i in (0, 1)
                for what in ("model", "optim")
            ],
            "ZeRO-3",
            4,
            "of 2 DeepSpeed processes, and this run has 4: launch 2",
        ),
        (
            ["global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step1/mp_rank_00_model_states.pt"],
            "ZeRO-3",
            1,
            "with DeepSpeed ZeRO-1 or ZeRO-2, which a run with DeepSpeed ZeRO-3",
        ),
    ],
)
def test_an_optimizer_that_a_sharded_run_cannot_read(tmp_path, files, here, processes, message):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        check_layout(tmp_path, here=here, processes=processes)


STATE = '{"version": 1, "parts": {"difficulty": {"beliefs": [0.5]}}}'


@refused
@pytest.mark.parametrize(
    "text",
    [
        STATE.replace("1,", '"one",'),
        STATE.replace("1,", "1.5,"),
        STATE.replace("1,", "true,"),
        STATE.replace("1,", "null,"),
        '{"version": 1, "parts": null}',
        '{"version": 1, "parts": {"difficulty": null}}',
        '{"version": 1, "parts": [1]}',
        "[" * 100_000,
        '{"version": 1, "parts": ' + '{"a": ' * 100_000,
        "\x00" * 100,
        "",
    ],
    ids=["word", "float", "bool", "no", "null", "null_part", "list", "deep_list", "deep_dict", "zeros", "empty"],
)
def test_damaged_state(tmp_path, text):
    (tmp_path / "credit_state.json").write_text(text)
    with pytest.raises(ValueError, match="credit_state.json is damaged .*resume from another checkpoint"):
        read_state(tmp_path, wanted={"difficulty": "difficulty='history'"})


@refused
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"version": "x", "identity": {}, "lives": []}',
        '{"version": 1, "identity": null, "lives": []}',
        '{"version": 1, "identity": {}, "lives": [{"from": "0", "id": "a"}]}',
        '{"version": 1, "identity": {}, "lives": null}',
    ],
)
def test_a_damaged_record(tmp_path, text):
    (tmp_path / "credit_run.json").write_text(text)
    with pytest.raises(ValueError, match="credit_run.json is damaged"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="credit_run.json is damaged"):
        last_checkpoint(tmp_path)


@refused
def test_a_replay_file_that_was_changed(make_trainer, tmp_path):
    settings = {**SAVES, "tree_branching": [3, 2], "replay_cap": 1, "max_completion_length": 6}
    make_trainer("spo_tree", max_steps=1, **settings).train()
    path = tmp_path / "run" / "checkpoint-1" / "replay.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    assert len(tensors["advantages"]) > 0
    tensors["advantages"] += 1e-9
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match="replay.safetensors.*checksum.*another checkpoint"):
        make_trainer("spo_tree", max_steps=2, **settings).train(resume_from_checkpoint=True)


@survived
def test_state_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """What a loss of power leaves is the old file or the new one."""
    done = []
    real_fsync, real_replace = __import__("os").fsync, Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: (done.append("sync"), real_fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("name"), real_replace(self, to))[1])
    write_state(tmp_path, {})
    assert done == ["sync", "name", "sync"]  # the content, the name, the folder that has it


@survived
def test_closures_are_told_apart(make_trainer, tmp_path):
    def reward(weight):
        def share(completions, **kwargs):
            return [weight * sum(c in "abc" for c in text) for text in completions]

        return share

    make_trainer("grpo", max_steps=1, reward_funcs=reward(1.0), **SAVES).train()
    make_trainer("grpo", max_steps=2, reward_funcs=reward(1.0), **SAVES).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="reward_funcs.share SHA-256"):
        make_trainer("grpo", max_steps=3, reward_funcs=reward(2.0), **SAVES).train(resume_from_checkpoint=True)


@survived
def test_what_is_not_of_the_loss_may_change(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    other = {**SAVES, "save_steps": 2, "logging_steps": 5, "reward_timeout": 60.0, "report_to": "none"}
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}  # the same batch in other pieces
    trainer = make_trainer("grpo", max_steps=2, **other, **cut)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2 and isinstance(trainer.args, CreditConfig)
    assert isinstance(trainer, CreditTrainer)


@survived
def test_the_card_lists_a_change_with_its_step(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    changed = make_trainer("grpo", max_steps=2, **{**SAVES, "seed": 7, "allow_changed": ["seed"]})
    changed.train(resume_from_checkpoint=True)
    card = write_model_card(changed, name="GRPO").read_text()
    assert "* From step 1: seed 42 → 7." in card
    assert "allow_changed" not in (tmp_path / "run" / "recipe.yaml").read_text()  # it is of this life, not of the run


@survived
def test_a_kill_while_an_old_checkpoint_is_overwritten(make_trainer, tmp_path, monkeypatch):
    """The old one's last file must not say that the mixture is whole."""
    make_trainer("grpo", max_steps=2, **SAVES).train()
    again = make_trainer("grpo", max_steps=2, **SAVES)
    save = again._save_optimizer_and_scheduler

    def killed(folder):
        if folder.endswith("-2"):
            raise KeyboardInterrupt
        save(folder)

    monkeypatch.setattr(again, "_save_optimizer_and_scheduler", killed)
    with pytest.raises(KeyboardInterrupt):
        again.train()
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


@survived
def test_a_run_that_ended_with_an_epoch_is_done(make_trainer, caplog):
    settings = {**SAVES, "max_steps": -1, "num_train_epochs": 1, "n_prompts": 4}  # two steps
    make_trainer("grpo", **settings).train()
    again = make_trainer("grpo", **settings)
    again.train(resume_from_checkpoint=True)
    assert again.was_done and "already at step 2 of 2" in caplog.text


@refused
def test_a_checkpoint_from_elsewhere_into_the_folder_of_another_run(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    make_trainer("p_trace", max_steps=2, **SAVES).train()
    checkpoint = str(tmp_path / "one" / "checkpoint-1")
    with pytest.raises(ValueError, match="holds the results of another run.*algorithm P-trace → GRPO"):
        make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=checkpoint)
    # of which the checkpoints may be removed, since that to resume from is not among them
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


class StopInside(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


@survived
def test_stopped_inside_of_the_first_step(make_trainer):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = make_trainer("grpo", trainer_kwargs={"callbacks": [StopInside()]}, **settings)
    assert trainer.train().global_step == 0  # not "the rows ended"


@refused
def test_weights_alone_cannot_be_resumed_with_deepspeed(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no optimizer .save_only_model=True.*as the model"):
        check_layout(tmp_path, here="ZeRO-3", processes=2)
    check_layout(tmp_path, here="plain", processes=1)  # where it is said what is missing


@survived
def test_folders_that_cannot_be_flushed(tmp_path, monkeypatch):
    """Mounts of object stores, of which only files can be."""
    real = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    write_state(tmp_path, {})
    assert read_state(tmp_path, wanted={}) == {}


OWN = """
from trl_credit.assignment import assign_credit

def one(config, tokens):
    return assign_credit(config, tokens)

def two(config, tokens):
    return assign_credit(config, tokens)
"""


@refused
def test_another_function_of_the_same_file(make_trainer, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    make_trainer("base", max_steps=1, credit=f"{tmp_path}/own.py:one", **SAVES).train()
    make_trainer("base", max_steps=2, credit=f"{tmp_path}/../{tmp_path.name}/own.py:one", **SAVES).train(True)
    with pytest.raises(ValueError, match="credit SHA-256 .* → SHA-256"):
        make_trainer("base", max_steps=3, credit=f"{tmp_path}/own.py:two", **SAVES).train(True)


@refused
def test_rewards_with_the_weights_of_others(make_trainer):
    same = [functools.partial(length_reward, scale=scale) for scale in (1, 2)]
    settings = {**SAVES, "reward_weights": [1.0, 0.1]}
    make_trainer("grpo", max_steps=1, reward_funcs=same, **settings).train()
    with pytest.raises(ValueError, match=r"length_reward SHA-256 \w+ \* 1 → .*length_reward 2 SHA-256"):
        make_trainer("grpo", max_steps=2, reward_funcs=same[::-1], **settings).train(True)
    with pytest.raises(ValueError, match="reward_funcs.length_reward SHA-256"):  # of one name, and both are known
        other = [functools.partial(length_reward, scale=3), same[1]]
        make_trainer("grpo", max_steps=2, reward_funcs=other, **settings).train(True)


@refused
def test_another_chat_template(make_trainer, tiny_model):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{{ messages[0]['content'] }}!"
    with pytest.raises(ValueError, match="differs from this one in tokenizer.chat_template null → "):
        make_trainer("grpo", max_steps=2, trainer_kwargs={"processing_class": tokenizer}, **SAVES).train(True)


@refused
def test_another_precision_of_the_weights(make_trainer):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    with pytest.raises(ValueError, match="model.dtype float32 → bfloat16"):
        make_trainer("grpo", max_steps=2, model_init_kwargs={"dtype": "bfloat16"}, **SAVES).train(True)


@survived
def test_what_functions_note_makes_them_no_others(make_trainer):
    seen: list[str] = []
    calls = 0

    def reward(completions, **kwargs):
        nonlocal calls
        calls += 1
        seen.extend(completions)
        return [len(text) / 8 for text in completions]

    trainer = make_trainer("grpo", max_steps=1, reward_funcs=reward, **SAVES)
    trainer.train()
    trainer.train()
    make_trainer("grpo", max_steps=2, reward_funcs=reward, **SAVES).train(True)
    assert calls > 2 and seen


SCRIPT = """
from trl_credit.names import digest_of

LEARNING_RATE, WEIGHT = {rate}, {weight}

def part(text):
    return WEIGHT * len(text)

def reward(completions, **kwargs):
    return [part(text) for text in completions]

class Judge:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, **kwargs):
        return [self.scale * part(text) for text in completions]

print(digest_of(reward), digest_of(Judge({scale})))
"""


@survived
def test_the_settings_of_a_script_are_no_part_of_its_rewards(tmp_path):
    """A script has both: a run that goes on with a larger max_steps has the same reward functions."""

    def digests(**values) -> list[str]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        path.write_text(SCRIPT.format(**{"rate": 1e-6, "weight": 1, "scale": 1, **values}))
        return subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout.split()

    reward, judge = digests()
    assert digests(rate=1e-5) == [reward, judge]
    assert digests(scale=2)[0] == reward and digests(scale=2)[1] != judge
    heavier = digests(weight=2)
    assert heavier[0] != reward and heavier[1] != judge


@survived
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1}, "has no reference model: TRL does not keep"),
        ({"use_adaptive_entropy": True, "entropy_coef": 0.01}, "has no entropy_ctrl_state.json: the coefficient"),
    ],
    ids=["reference", "entropy"],
)
def test_what_trl_keeps_apart_is_said(make_trainer, tmp_path, caplog, settings, message):
    make_trainer("grpo", max_steps=1, **settings, **SAVES).train()
    (tmp_path / "run" / "checkpoint-1" / "entropy_ctrl_state.json").unlink(missing_ok=True)  # killed before it
    make_trainer("grpo", max_steps=2, **settings, **SAVES).train(resume_from_checkpoint=True)
    assert message in caplog.text


@survived
def test_what_a_life_wrote_that_was_given_up_is_passed_over(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=3, **SAVES).train()
    earlier = str(tmp_path / "run" / "checkpoint-1")
    make_trainer("grpo", max_steps=2, **{**SAVES, "save_strategy": "no"}).train(resume_from_checkpoint=earlier)
    assert last_checkpoint(tmp_path / "run") == Path(earlier)  # not 2 and 3, which are still there
