"""Training with segments: other knobs, conversations, passes for π_old, replay, and what is refused."""

import pytest
import segment_helpers
import torch
from passes_helpers import model_of, scripted
from segment_helpers import CHAIN, TREE, batches, counts_on, generation_batch, plans, steps_of, with_engine
from tiny_models import QWEN3
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.rollouts.forest import PACKED_MODELS


@pytest.mark.parametrize(("form", "rows"), [("value", 16), ("advantage", 0)])
def test_a_value_of_zero_is_a_row_of_the_value_form(trained, form, rows):
    """Its tokens count in the mean over all tokens, where a node without advantage is left out."""
    process = {"process_reward_weight": 1.0, "process_reward_best_of": 4, "process_reward_form": form}
    trainer = trained(**TREE, **process, reward_funcs=lambda completions, **kwargs: [0.0] * len(completions))
    assert [row["credit/rows"] for row in steps_of(trainer)] == [rows, rows]


# Passes for π_old


REPLAY = {**TREE, "tree_branching": [4, 3, 3], "tree_segment_length": 2, "replay_iterations": 3, "replay_cap": 8}


def length(completions, **kwargs):
    return [len(text) / 7 for text in completions]


@pytest.mark.parametrize(("kind", "form"), [*((kind, "nodes") for kind in PACKED_MODELS), ("qwen3", "paths")])
def test_packed_passes_give_what_plain_rows_have(make_trainer, tiny_model, kind, form):
    model = model_of(CONFIG_MAPPING[kind](**{**QWEN3, "initializer_range": 0.2}), tiny_model)
    pair = CreditConfig, scripted(CreditTrainer, model)
    trainer = make_trainer(pair, reward_funcs=length, tree_rows=form, **REPLAY)
    assert trainer.forest.can_pack
    trees = trainer.forest.plan([{"prompt": prompt} for prompt in ("1+1=", "23+45=6-") for _ in range(8)]).trees
    logps = {}
    for trainer.forest.can_pack in (False, True):
        logps[trainer.forest.can_pack] = [row.behavior_logps for row in trainer.forest._new_rows(trees)]
    assert len(logps[True]) == len(logps[False]) > 10
    for packed, plain in zip(logps[True], logps[False], strict=True):
        assert packed == pytest.approx(plain, rel=1e-6, abs=2e-6) and max(plain) < 0


# Replay


def test_new_rows_of_a_mixed_batch_are_computed_where_the_engines_are_not_kept(make_trainer):
    trainer = with_engine(
        make_trainer(**{**REPLAY, "tree_segment_length": 1, "replay_cap": 2}), segment_helpers.RecordingEngine()
    )
    counts_on(trainer)
    planned = plans(trainer)
    first, mixed = generation_batch(trainer), generation_batch(trainer)
    assert "old_per_token_logps" not in first
    is_old = torch.tensor([[row.birth < planned[1].iteration] for row in planned[1].rows])
    inside = mixed["segment_ids"] >= 0
    expected = trainer.engine.behavior_logps(mixed).masked_fill(is_old, -0.5)  # the engine's, of whatever token
    torch.testing.assert_close(mixed["old_per_token_logps"][inside], expected[inside])
    assert (is_old & inside).any() and (~is_old & inside).any()


@pytest.mark.parametrize("form", ["nodes", "packed"])
def test_replayed_rows_keep_the_policy_that_sampled_them(make_trainer, form):
    sizes = {**TREE, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 3e-2}
    trainer = make_trainer(**sizes, tree_rows=form, replay_iterations=4, replay_cap=2, token_mask="probability")
    planned, kept = plans(trainer), batches(trainer)
    trainer.train()
    for row, logp in zip(planned[0].rows[: planned[0].n_real], kept[0]["old_per_token_logps"], strict=False):
        # what is stored with a new row is what TRL computes for it
        assert row.behavior_logps == pytest.approx(logp[: len(row.completion_ids)].tolist(), abs=1e-5)
    rows = steps_of(trainer)
    assert rows[0]["credit/replay/age"] == 0 and max(row["credit/replay/age"] for row in rows) > 0
    # under the final weights, log-probabilities differ from the stored π_old, since the weights have moved
    last = kept[-1]
    with torch.no_grad():
        now = trainer.engine.behavior_logps(last)
    mask = last["completion_mask"] * last["tool_mask"]
    gaps = ((now - last["old_per_token_logps"]).abs() * mask).amax(1)[mask.sum(1) > 0]
    assert gaps.max() > 0.05


def test_a_batch_without_a_boundary_says_so(make_trainer, caplog):
    trainer = make_trainer(**CHAIN, token_mask="probability", probability_threshold=1e-9)
    calls = segment_helpers.engine_calls(trainer)
    with caplog.at_level("WARNING"):
        output = generation_batch(trainer)
    assert "no boundary" in caplog.text and "probability_threshold" in caplog.text
    assert len(calls) == 1 and not output["advantages"].any()
    trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(trainer.model, output).item() == 0.0  # its normaliser would be 0
