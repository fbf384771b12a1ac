"""Replay in training: π_old of replayed rows, resuming, and one seed."""

import pytest
import torch
from safetensors.torch import save_file
from segment_helpers import CHAIN, TREE, batches, steps_of

from trl_credit.credit.selection import probability_mask


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_replayed_rows_keep_the_policy_that_sampled_them(make_trainer, form):
    trainer = make_trainer(
        tree_rows=form,
        **{**TREE, "num_generations": 4, "per_device_train_batch_size": 8},
        replay_iterations=4,
        replay_cap=2,
        learning_rate=3e-2,
        max_steps=4,
        token_mask="probability",
    )
    plans = []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    kept = batches(trainer)
    trainer.train()
    for row, logp in zip(plans[0].rows[: plans[0].n_real], kept[0]["old_per_token_logps"], strict=False):
        # what is stored with a new row is what TRL computes for it
        assert row.behavior_logps == pytest.approx(logp[: len(row.completion_ids)].tolist(), abs=1e-5)
    rows = steps_of(trainer)
    assert rows[0]["credit/replay/age"] == 0 and max(row["credit/replay/age"] for row in rows) > 0
    # under the weights of the end, rows of the last batch that are new fit π_old less the further the weights moved
    last = kept[-1]
    with torch.no_grad():
        now = trainer._behavior_logps(last)
    mask = last["completion_mask"] * last["tool_mask"]
    gaps = ((now - last["old_per_token_logps"]).abs() * mask).amax(1)[mask.sum(1) > 0]
    assert gaps.max() > 0.05
    first = kept[0]
    kept_tokens = probability_mask(
        first["old_per_token_logps"], threshold=0.9, mask_t=first["completion_mask"] * first["tool_mask"]
    )
    assert first["num_items_in_batch"] == kept_tokens.sum()


def test_resuming_with_replay_is_going_on(make_trainer, tmp_path):
    settings = {
        **TREE,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "replay_iterations": 4,
        "replay_cap": 3,
        "difficulty": "history",
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 5,
    }
    whole = make_trainer(**settings, output_dir=str(tmp_path / "whole"))
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert {"replay.safetensors", "credit_state.json"} <= {p.name for p in checkpoint.iterdir()}
    resumed = make_trainer(**settings, output_dir=str(tmp_path / "resumed"))
    resumed.train(resume_from_checkpoint=str(checkpoint))
    for name, p in whole.model.named_parameters():
        assert torch.equal(p, resumed.model.get_parameter(name)), name
    (checkpoint / "replay.safetensors").unlink()
    with pytest.raises(ValueError, match="replay buffer"):
        make_trainer(**settings).train(resume_from_checkpoint=str(checkpoint))
    save_file({"x": torch.zeros(1)}, checkpoint / "replay.safetensors")
    with pytest.raises(ValueError, match="replay buffer"):
        make_trainer(**settings).train(resume_from_checkpoint=str(checkpoint))


def test_one_seed_one_run(make_trainer):
    for settings in (CHAIN, {**CHAIN, "rollout_batch_size": 6}, {**TREE, "replay_iterations": 3, "replay_cap": 2}):
        histories = []
        for _ in range(2):
            trainer = make_trainer(**settings, max_steps=3)
            trainer.train()
            histories.append([(row["loss"], row["grad_norm"], row["reward"]) for row in steps_of(trainer)])
        assert histories[0] == histories[1]
