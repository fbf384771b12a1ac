"""Engines that are not here: what segment credit asks them for, and what it makes of their answers."""

import pytest
import torch
import trl
from segment_helpers import CHAIN, TREE, RecordingEngine, generation_batch, with_engine

from trl_credit import CreditConfig
from trl_credit.trainer.engine import RolloutEngine


@pytest.mark.parametrize("sleeping", [False, True])
def test_the_engine_is_synced_once_and_awake_for_all_calls_of_a_batch(make_trainer, sleeping):
    for settings, calls in ((CHAIN, 2), ({**TREE, "tree_branching": [2, 2], "tree_segment_length": 1}, 2)):
        engine = RecordingEngine(sleeping=sleeping)
        trainer = with_engine(make_trainer(**settings), engine)
        generation_batch(trainer)
        names = [entry if isinstance(entry, str) else entry[0] for entry in engine.log]
        inner = ["generate"] * calls
        assert names == (["sync", "wake kv_cache", *inner, "sleep"] if sleeping else ["sync", *inner])
        assert engine._llm_weights_sleeping == sleeping and engine.enable_sleep_mode == sleeping


def test_a_prefix_is_one_request_with_its_own_budget(make_trainer):
    engine = RecordingEngine()
    trainer = with_engine(make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1), engine)
    output = generation_batch(trainer)
    (_, first), (_, second) = [entry for entry in engine.log if entry != "sync"]
    assert first == [(4, 1, 8)] * 8
    # [3, 4, 1] from every prompt: s_0 and s_1 of each of two prompts, the end token beginning no segment
    assert sorted(second) == [(4, 3, 8), (4, 3, 8), (5, 3, 7), (5, 3, 7)]
    assert output["advantages"].shape == (8, 3)


def test_a_server_gets_equal_blocks_of_repeated_prefixes(make_trainer):
    engine = RecordingEngine(mode="server")
    trainer = with_engine(make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1), engine)
    generation_batch(trainer)
    (_, first), (_, second) = [entry for entry in engine.log if entry != "sync"]
    assert first == [(4, 4, 8)] * 2
    assert sorted(second) == [(4, 3, 8), (4, 3, 8), (5, 3, 8), (5, 3, 8)]  # one limit for all: the rest is cut off
    assert engine.max_completion_length == 8 and trainer.num_generations == 4  # as they were


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
@pytest.mark.parametrize("mode", ["sequence_mask", "token_truncate"])
def test_engine_log_probabilities_travel_with_the_rows(make_trainer, tmp_path, form, mode):
    engine = RecordingEngine(unknown_at=1)
    settings = {
        **TREE,
        "tree_branching": [2, 2, 2],
        "tree_segment_length": 1,
        "replay_iterations": 3,
        "tree_rows": form,
    }
    trainer = with_engine(make_trainer(**settings, replay_cap=1), engine)
    trainer.vllm_importance_sampling_correction, trainer.vllm_importance_sampling_mode = True, mode
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = 0.0, 1e9
    rng = iter(range(10**6))
    trainer.reward_funcs = [lambda completions, **kwargs: [next(rng) % 7 / 7 for _ in completions]]
    plans = []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    outputs = [generation_batch(trainer) for _ in range(2)]
    trainer.forest.buffer.save(tmp_path / "replay.safetensors")  # with what the engine did not know
    assert plans[1].has_replayed
    for output, planned in zip(outputs, plans, strict=True):
        ids, sampling = output["segment_ids"], output["sampling_per_token_logps"]
        old, ratio = output["old_per_token_logps"], output["importance_sampling_ratio"]
        assert (ids >= 0).any() and set(sampling[ids >= 0].nan_to_num(7.0).tolist()) == {-0.5, 7.0}
        assert (old[ids >= 0] < 0).all()  # no 0 in the place of what is not known
        for row, made in enumerate(planned.rows):
            for k in range(int(ids[row].max()) + 1):
                inside = ids[row] == k
                difference = (old[row] - sampling[row])[inside].nan_to_num()
                if made.birth < planned.iteration:
                    assert (ratio[row][inside] == 1).all()
                    known = ~sampling[row][inside].isnan()
                    assert (old[row][inside][known] == -0.5).all()
                elif mode == "sequence_mask":
                    torch.testing.assert_close(ratio[row][inside], difference.sum().exp().expand(inside.sum()))
                else:
                    torch.testing.assert_close(ratio[row][inside], difference.exp())


def test_a_response_cut_by_the_context_did_not_end(make_trainer):
    engine = RecordingEngine(answer=[3, 4, 5])
    trainer = with_engine(
        make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, truncated_value=-7.0), engine
    )
    trainer.args.vllm_max_model_length = 4 + 3  # a prompt has four tokens
    output = generation_batch(trainer)
    assert not output["advantages"].any()  # −7 − (−7), and no reward of the response's own


def test_the_engine_alone_trains_as_trl_does_and_answers(make_trainer, tmp_path):
    """It needs nothing of the trainer that stands on it."""
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), output_dir=str(tmp_path / "theirs"))
    ours = make_trainer((CreditConfig, RolloutEngine), output_dir=str(tmp_path / "ours"))
    for trainer in (theirs, ours):
        torch.manual_seed(1)
        trainer.train()
    for name, p in theirs.model.named_parameters():
        assert torch.equal(p, ours.model.get_parameter(name)), name
    found = ours.continue_prefixes([[3, 4], [5]], n=2, budgets=[3, 1])
    assert [len(c.ids) <= budget for c, budget in zip(found, (3, 3, 1, 1), strict=True)] == [True] * 4
    rewards = ours.score_responses([{"prompt": "1+1="}] * 2, [[3, 4], [5, 6]])
    assert rewards.shape == (2, 1) and ours.total_reward(rewards).shape == (2,)
