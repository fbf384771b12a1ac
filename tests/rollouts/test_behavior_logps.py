"""π_old from the engine, and TRL's correction for the engine with every weight."""

import pytest
import torch
from segment_helpers import TREE, RecordingEngine, counts_on, generation_batch, passes, with_engine


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_engines_log_probabilities_as_behavior_policy(make_trainer, correction, aligned):
    batches = {}
    for kind in ("recomputed", "sampler"):
        trainer = make_trainer("s_trace", beta=0.1, num_iterations=1 if aligned else 2)
        trainer.args.behavior_logps = kind
        trainer = with_engine(trainer, RecordingEngine())
        trainer.vllm_importance_sampling_correction = correction
        calls = passes(trainer)
        batches[kind] = generation_batch(trainer), len(calls)
    recomputed, sampler = batches["recomputed"], batches["sampler"]
    mask = sampler[0]["completion_mask"].bool()
    assert (sampler[0]["old_per_token_logps"][mask] == -0.5).all()
    assert sampler[1] == 0  # the reference is another model
    assert recomputed[1] == (0 if aligned and not correction else 1)
    torch.testing.assert_close(sampler[0]["ref_per_token_logps"], recomputed[0]["ref_per_token_logps"])
    if correction:
        assert (sampler[0]["importance_sampling_ratio"] == 1).all()
        assert (recomputed[0]["importance_sampling_ratio"] != 1).any()


@pytest.mark.parametrize("correction", [False, True])
def test_what_the_engine_does_not_know_is_computed(make_trainer, correction):
    trainer = make_trainer("s_trace", beta=0.0)
    trainer.args.behavior_logps = "sampler"
    trainer = with_engine(trainer, RecordingEngine(unknown_at=1))
    trainer.vllm_importance_sampling_correction = correction
    calls = passes(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1
    old = output["old_per_token_logps"]
    assert (old[:, 0] == -0.5).all() and (old[:, 1] < -0.5).any() and old.isfinite().all()


def test_what_the_engine_does_not_know_of_packed_rows_is_computed_with_their_branches(make_trainer):
    """This pass comes before the batch has the columns that its branches see."""
    rows = {"tree_segment_length": 1, "num_generations": 2, "per_device_train_batch_size": 4}
    trainer = make_trainer(**{**TREE, **rows}, tree_rows="packed")
    trainer.args.behavior_logps = "sampler"
    trainer = with_engine(trainer, RecordingEngine(unknown_at=1))
    counts_on(trainer)
    output = generation_batch(trainer)
    unknown = output["sampling_per_token_logps"].isnan() & (output["segment_ids"] >= 0)
    assert unknown.any()
    computed = trainer.engine.behavior_logps(output)
    torch.testing.assert_close(output["old_per_token_logps"][unknown], computed[unknown])
