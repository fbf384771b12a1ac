"""Real training runs of a tiny model: every preset, every part of TRL underneath, and what a run logs."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import count_a, sums
from datasets import Dataset
from group_helpers import observed
from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM
from weight_helpers import check_finite, moved, weights
from worker import parity

import trl_credit
from trl_credit.credit.selection import probability_mask


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_every_preset_trains_off_policy_too(make_trainer, algo):
    rewards = {"reward_funcs": parity} if algo == "sdpo" else {}  # which needs right responses
    trainer = make_trainer(algo, num_iterations=2, steps_per_generation=2, max_steps=4, **rewards)
    before = weights(trainer)
    trainer.train()
    assert moved(trainer, before)
    check_finite(trainer)
    row = next(r for r in trainer.state.log_history if "credit/abs_advantage/quarter_1" in r)
    assert ("credit/clip_fraction" in row) == (algo not in ("kl_cov", "sdpo"))  # which have losses of their own
    assert {f"credit/abs_advantage/quarter_{q}" for q in (1, 2, 3, 4)} <= set(row)
    assert {"credit/groups_without_signal", "credit/unique_responses"} <= set(row)
    if trainer.args.has_trace:
        assert "credit/effective_horizon" in row
        assert 0.0 < row["credit/selected_fraction"] <= 1.0
    if trainer.args.difficulty != "none":
        assert "credit/difficulty_belief" in row and any(name.startswith("credit/difficulty_weight/") for name in row)


@pytest.mark.parametrize("is_code", [False, True], ids=["paper", "code"])
def test_difficulty_weights_and_belief_of_a_batch_and_none_of_an_evaluation(make_trainer, is_code):
    code = {"difficulty": "hard", "released_code": ["ha_dw_anchor"], "difficulty_scale": 1.5}
    trainer = make_trainer(
        "ha_dw", max_steps=3, difficulty_window=2, per_device_eval_batch_size=8, **(code if is_code else {})
    )
    batches, seen = observed(trainer), []
    for step, (generation, data, _) in enumerate(batches):
        rewards, advantages = generation.batch.rewards, generation.advantages
        seen.append(rewards.mean().item())
        # the first batch has no past; the released code compares every batch with a mean that it is part of
        anchor = seen[-2:] if is_code else seen[: max(step, 1)]
        diff = rewards.view(-1, 4).mean(1).repeat_interleave(4) - sum(anchor) / len(anchor)
        phi = (1.5 if is_code else 1.3) * torch.exp(-advantages.sign() * diff.sign() * diff.abs())
        torch.testing.assert_close(data["advantages"], advantages * phi)
    assert len(batches) == 3 and not torch.equal(advantages, data["advantages"])
    belief = trainer.difficulty.state_dict()
    metrics = trainer.evaluate(trainer.train_dataset.select(range(4)))
    assert math.isfinite(metrics["eval_loss"]) and trainer.difficulty.state_dict() == belief


def test_probability_mask_recounts_the_normaliser(make_trainer):
    trainer = make_trainer("base", loss_type="dapo", token_mask="probability", probability_threshold=0.3, max_steps=1)
    ((_, batch, _),) = observed(trainer)
    mask_t = batch["completion_mask"]
    inside = probability_mask(batch["old_per_token_logps"], threshold=0.3, mask_t=mask_t)
    assert 0 < inside.sum() < mask_t.sum() and batch["num_items_in_batch"] == inside.sum()
    share = (inside.sum() / mask_t.sum()).item()
    assert trainer.state.log_history[0]["credit/kept_fraction"] == pytest.approx(share)


@pytest.mark.parametrize("whiten", ["none", "batch"])
def test_completions_table_shows_the_advantages_that_were_used(make_trainer, tmp_path, whiten):
    knobs = {"difficulty": "fixed", "advantage_floor": -0.05, "whiten_advantages": whiten}
    knobs |= {"token_mask": "probability", "probability_threshold": 0.5} if whiten == "batch" else {}  # reads π_old
    trainer = make_trainer("opo", **knobs, max_steps=1, log_completions=True)
    ((_, batch, _),) = observed(trainer)
    table = pd.read_parquet(next((tmp_path / "run" / "completions").glob("*.parquet")))
    advantages = batch["advantages"]
    assert (advantages.dim() == 2) == (whiten == "batch")
    advantages = advantages.view(8, -1)[:, 0]  # the same at all tokens
    assert advantages.min() < -0.05
    assert table["advantage"].tolist() == pytest.approx(advantages.clamp(min=-0.05).tolist())


def test_default_configuration_is_the_trainers_own(tiny_model, here):
    trainer = trl_credit.GSPOTrainer(tiny_model, count_a, train_dataset=Dataset.from_dict({"prompt": ["1+1="] * 8}))
    assert isinstance(trainer.args, trl_credit.GSPOConfig) and trainer.args.importance == "sequence"
    assert Path(trainer.args.output_dir).name.endswith("GSPO")


# Bad input


@pytest.mark.parametrize("algo", ["base", "opo", "ha_dw", "s_trace"])
def test_none_for_a_whole_group_is_no_signal(make_trainer, algo):
    def some(completions, **kwargs):
        return [None if i < 4 else float(i % 2) for i in range(len(completions))]

    trainer = make_trainer(algo, reward_funcs=some, max_steps=1, shuffle_dataset=False)
    ((_, batch, _),) = observed(trainer)
    check_finite(trainer)
    advantages = batch["advantages"]
    assert advantages.isfinite().all() and (advantages == 0).sum() == 4


@pytest.mark.parametrize("algo", ["base", "fipo", "grpo_lambda", "ha_dw", "opo", "s_trace", "spo_chain", "spo_tree"])
def test_one_token_completions(trained, algo):
    one_level = {"tree_branching": [4]} if algo == "spo_tree" else {}
    trainer = trained(algo, max_completion_length=1, max_steps=1, **one_level)
    check_finite(trainer)


# no response ends: neither padding nor end of sequence is sampled
NO_END = {"generation_kwargs": {"suppress_tokens": [0, 1]}}
NOTHING = {
    "no reward": {"reward_funcs": lambda completions, **kwargs: [None] * len(completions)},
    "no token": {"mask_truncated_completions": True, **NO_END},
}


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("algo", ["base", "fipo", "kl_cov", "opo", "s_trace", "spo_chain"])
def test_without_a_reward_or_a_token_nothing_is_trained(make_trainer, algo, nothing):
    trainer = make_trainer(algo, **NOTHING[nothing], max_completion_length=2, beta=0.0, max_steps=1)
    before = weights(trainer)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["loss"] == 0.0 and (nothing == "no reward" or row["completions/clipped_ratio"] == 1.0)
    assert not moved(trainer, before)


# `max_completion_length=None`: the rest of the model's context


@pytest.mark.parametrize("algo", ["grpo", "dr_grpo", "spo_chain", "spo_tree"])
def test_no_limit_is_what_a_prompt_leaves_of_the_context(make_trainer, algo, caplog):
    trainer = make_trainer(algo, max_completion_length=None, max_steps=1, **NO_END, n_prompts=8)
    assert trainer.args.max_completion_length == trainer.max_completion_length == 1024
    trainer.args.max_completion_length = trainer.max_completion_length = 32  # a context that is soon full
    trainer.model.config.max_position_embeddings = 32
    trainer.generation_config.max_length = trainer.generation_kwargs["max_length"] = 32
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "completions/max_length" in row]
    assert row["completions/max_length"] == 32 - len(sums(1)[0]["prompt"])
    assert "max_new_tokens" not in caplog.text


def test_a_model_without_a_context_needs_a_number(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=1, n_head=2))
    kwargs = {"model": model, "processing_class": tokenizer}
    with pytest.raises(ValueError, match="max_completion_length=None .* no max_position_embeddings: set a number"):
        make_trainer("grpo", max_completion_length=None, trainer_kwargs=kwargs)
    assert make_trainer("grpo", trainer_kwargs=kwargs).engine.remaining_budget(4, 2) == 6


# A dictionary of evaluation sets


def half(prompts, completions, **columns):
    pairs = zip(prompts, completions, strict=True)
    return [float(prompt.startswith("1")) + 0.25 * ("a" in text) for prompt, text in pairs]


SAVES = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}


SETS = {"ones": sums(64).select([1, 11]), "the_others/x": sums(64).select([2, 3])}


def test_each_set_has_metrics_of_its_own_and_chooses_the_best_checkpoint(make_trainer, capsys):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_ones_reward"}
    trainer = make_trainer(reward_funcs=half, trainer_kwargs={"eval_dataset": SETS}, **SAVES, **best)
    trainer.train()
    rows = [row for row in trainer.state.log_history if any(name.startswith("eval") for name in row)]
    names = [{name.split("_reward")[0] for name in row if name.endswith("_reward")} for row in rows]
    assert names == [{"eval_ones"}, {"eval_the_others/x"}] * 2
    assert all(row["eval_ones_reward"] >= 1 for row in rows[::2])
    assert all(row["eval_the_others/x_reward"] <= 0.25 for row in rows[1::2])
    for row, name in zip(rows, ["ones", "the_others/x"] * 2, strict=True):
        ours = {key for key in row if key not in ("step", "epoch")}
        assert all(key.startswith(f"eval_{name}_") for key in ours)
        assert {f"eval_{name}_rewards/half/mean", f"eval_{name}_entropy", f"eval_{name}_credit/abs_advantage"} <= ours
    assert trainer.state.best_metric == max(row["eval_ones_reward"] for row in rows[::2])
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if " evaluation " in line]
    assert [line[3:5] for line in shown] == [["ones", "reward"], ["the_others/x", "reward"]] * 2
    alone = trainer.evaluate(SETS["ones"], metric_key_prefix="test")
    assert {"test_reward", "test_loss"} <= alone.keys() and "eval_reward" not in alone
    assert not trainer._metrics["eval"]
