"""Weights per turn in what a run leaves to look at: explain, the viewer, and comparisons."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from trl_credit import CreditConfig
from trl_credit.lab.comparison.same_gradient import has_same_gradient
from trl_credit.lab.explain import explain, read_rollouts


def test_explain_reads_the_turns_of_the_responses(tmp_path):
    """Two turns without a token between them, which their numbers tell apart."""
    row = {"prompt": "1+1=", "completion": "abcd", "tokens": list("abcd"), "logprobs": [-1.0, -2.0, -1.0, -1.0]}
    row |= {"old_logprobs": [-1.1, -2.1, -1.3, -1.4], "entropy": [1.0] * 4, "loss_mask": [1] * 4}
    rows = [row | {"reward": reward, "turn_ids": [0, 0, 1, 1]} for reward in (0.0, 1.0)]
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", importance="turn")
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shard = read_rollouts(tmp_path / "rollouts.jsonl")
    explained = explain(shard, config, name="turn").shard.responses[0]["log_weight"]
    assert explained == pytest.approx([0.1, 0.1, 0.35, 0.35])


def test_a_comparison_knows_which_weights_per_turn_have_the_gradient_of_grpo(tmp_path):
    def run(**knobs):
        config = CreditConfig(output_dir=str(tmp_path), report_to="none", loss_type="grpo", **knobs)
        identity = asdict(config) | {"batch_size": 8, "generation_batch_size": 8}
        return SimpleNamespace(identity=identity, record={})

    plain = run()
    assert has_same_gradient(run(importance="turn"), plain) and has_same_gradient(run(importance="turn_token"), plain)
    trace = {"importance": "eligible"}
    assert not has_same_gradient(run(**trace, trace_unit="turn"), run(**trace))
    assert not has_same_gradient(run(**trace, trace_unit="turn"), plain)
    assert not has_same_gradient(run(turn_average=True), plain)
