"""Weights per turn in what a run leaves to look at: explain, the viewer, and comparisons."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from turn_helpers import TURN_FORMS, conversations, turn_jacobian

from trl_credit import CreditConfig
from trl_credit.credit.gradient import travelled
from trl_credit.lab.comparison.same_gradient import has_same_gradient
from trl_credit.lab.explain import explain, read_rollouts
from trl_credit.observe.schema import read_shard, steps


pytest_plugins = ["viewer_browser"]

TALK = {"trainer_kwargs": {"rollout_func": conversations}, "max_completion_length": 16, "loss_type": "grpo"}


def index(completions, **kwargs):
    return [i % 5 / 4 for i, _ in enumerate(completions)]


@pytest.mark.parametrize("form", TURN_FORMS)
def test_explain_gives_the_credit_that_the_run_gave(trained, form):
    knobs = {**TURN_FORMS[form], "num_iterations": 2, "learning_rate": 3e-3, "max_steps": 2}
    trainer = trained("base", log_credit=1, reward_funcs=index, **TALK, **knobs)
    (_, path), *_ = steps(trainer.args.output_dir)
    logged = read_shard(path)
    explained = explain(read_rollouts(trainer.args.output_dir, step=logged.header["step"]), trainer.args, name="again")
    for again, row in zip(explained.shard.responses, logged.responses, strict=True):
        for name in ("credit", "log_weight"):
            assert again[name] == pytest.approx(row[name], rel=1e-3, abs=1e-4)
    assert (explained.horizon is None) == (form == "turn")
    if form in ("p_trace", "lambda"):
        sums = torch.zeros(2, dtype=torch.float64)
        for row in logged.responses:
            jacobian = turn_jacobian(trainer.args, row["turn_ids"], row["loss_mask"], row["selected"])
            size = torch.tensor([abs(a) * m for a, m in zip(row["advantages"], row["loss_mask"], strict=True)])
            logp_t = torch.zeros(1, len(size), dtype=torch.float64, requires_grad=True)
            sums += torch.stack(travelled(logp_t @ jacobian.T, logp_t=logp_t, coefficient_t=size.unsqueeze(0)))
        assert explained.horizon == pytest.approx((sums[0] / sums[1]).item(), rel=1e-3)


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
