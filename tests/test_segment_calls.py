"""Segment credit through the real trainer: what the engine is asked for, and how often."""

import math
import random

import pytest
from datasets import Dataset
from segment_helpers import CHAIN, TREE, engine_calls, steps_of

import trl_credit.trainer.engine


@pytest.mark.parametrize("segmentation", ["cutpoints", "fixed_length", "fixed_count", "steps"])
def test_a_chain_takes_two_engine_calls(make_trainer, segmentation):
    knobs = {"fixed_length": {"segment_length": 2}, "steps": {}}.get(segmentation, {"num_segments": 3})
    trainer = make_trainer(**CHAIN, segmentation=segmentation, max_steps=2, **knobs)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) == 2 * 2
    assert calls[0] == (8, 8) and calls[1][0] % 3 == 0
    row = steps_of(trainer)[0]
    assert row["credit/rollouts"] == calls[1][0]
    assert 0 < row["credit/rollout_token_share"] < 1
    assert {f"credit/seconds/{phase}" for phase in ("generate", "rollouts", "rewards", "train")} <= set(row)


def test_rollout_batches_bound_a_call(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=2, rollout_batch_size=12, max_steps=1)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) > 2 and all(rows <= 12 for rows, _ in calls[1:])
    assert sum(rows for rows, _ in calls[1:]) == steps_of(trainer)[0]["credit/rollouts"]


def test_prefixes_of_like_budgets_are_continued_together(make_trainer):
    rng = random.Random(0)
    prefixes = [[rng.randrange(3, 20) for _ in range(rng.randint(1, 9))] for _ in range(9)]
    budgets = [1, 8, 2, 7, 1, 8, 2, 7, 1]
    found, calls = {}, {}
    for size in (None, 4):
        trainer = make_trainer(**CHAIN, rollout_batch_size=size, top_k=1)  # the most probable token: nothing is drawn
        calls[size] = engine_calls(trainer)
        found[size] = trainer.continue_prefixes(prefixes, n=2, budgets=budgets)
    assert calls == {None: [(18, 8)], 4: [(4, 8), (4, 7), (4, 2), (4, 1), (2, 1)]}  # 74 slots; as they come, 122
    assert [c.ids for c in found[4]] == [c.ids for c in found[None]]
    assert all(1 <= len(c.ids) <= budgets[i // 2] for i, c in enumerate(found[4]))
    assert max(len(c.ids) for c in found[4]) == 8


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_progress_bar_of_rollouts(make_trainer, monkeypatch, capsys, settings):
    monkeypatch.setattr(trl_credit.trainer.engine, "PROGRESS_DELAY", 0.0)
    trainer = make_trainer(**settings, disable_tqdm=False, max_steps=1)
    trainer.train()
    shown = capsys.readouterr().err
    label = "rollouts" if settings is CHAIN else "tree level 2 of 2"
    assert f"{label}:" in shown and "token/s" in shown
    assert not trainer.model._forward_pre_hooks
    trainer = make_trainer(**settings, disable_tqdm=True, max_steps=1)
    trainer.train()
    assert label not in capsys.readouterr().err


def test_a_tree_takes_one_engine_call_per_level(make_trainer):
    trainer = make_trainer(**{**TREE, "tree_branching": [2, 2, 2], "tree_segment_length": 2}, max_steps=2)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) == 3 * 2
    assert calls[:3] == [(4, 2), (calls[1][0], 2), (calls[2][0], 4)] and calls[1][0] <= 8 and calls[2][0] <= 16
    row = steps_of(trainer)[0]
    assert row["credit/nodes"] == sum(rows for rows, _ in calls[:3])
    # the cost of the specification's formula: M tokens on the inner levels, what is left on the last
    assert row["credit/rollout_tokens"] <= calls[0][0] * 2 + calls[1][0] * 2 + calls[2][0] * 4


def test_equal_prefixes_share_their_rollouts(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=100, max_completion_length=101)
    trainer.args.max_completion_length = trainer.max_completion_length = 8
    calls = engine_calls(trainer)
    trainer.train()
    assert calls[1] == (2 * 3, 8)  # two prompts with four responses each: one state per prompt
    assert steps_of(trainer)[0]["credit/rollouts_saved"] == (8 - 2) * 3


def test_evaluation_is_of_plain_responses(make_trainer):
    for settings in (CHAIN, TREE):
        trainer = make_trainer(
            **settings,
            per_device_eval_batch_size=8,
            num_generations_eval=4,
            trainer_kwargs={"eval_dataset": Dataset.from_dict({"prompt": ["1+1="] * 2, "answer": ["2"] * 2})},
        )
        calls = engine_calls(trainer)
        metrics = trainer.evaluate()
        assert len(calls) == 1 and "eval_reward" in metrics and math.isfinite(metrics["eval_loss"])
