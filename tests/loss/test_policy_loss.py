"""Policy iteration, whitening, floor, loss weights and GRPO-λ's clip for both signs, through TRL's `_compute_loss`."""

import math
from dataclasses import replace

import pytest
import torch
from custom_functions import args_of
from toy_loss import check_close, check_loss, k3, run, surrogate, toy
from trace_helpers import trace_matrix

from trl_credit.credit.advantages import optimal_advantage, whiten
from trl_credit.credit.difficulty import difficulty_weight
from trl_credit.loss.order import in_batch, in_loss, outcome_advantages
from trl_credit.testing import made_up_tokens


@pytest.mark.parametrize("half", [False, True], ids=["paper", "code"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
def test_policy_iteration_in_closed_form(make_trainer, toy_loss, loss_type, half):
    t = toy()
    ids = torch.tensor([[0, 0, 1, 1, -1, -1, -1], [0, 0, 0, 0, 1, 1, 1], [0] * 7, [-1, 0, 0, 1, 1, 2, 2]])
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t["advantages"] = table.gather(1, ids.clamp(min=0)) * (ids >= 0)
    t["old"][2] -= 1.0  # the weight of this row is above its bound
    released_code, factor = (["spo_policy_iteration"], 0.5) if half else (None, 1.0)
    knobs = {"policy_loss": "policy_iteration", "beta": 0.1, "released_code": released_code}
    trainer = make_trainer("base", loss_type=loss_type, **knobs)
    expected, rows = [], []
    logps = t["logps"]
    for row in range(4):
        losses = []
        for k in range(3):
            inside = (ids[row] == k) & t["mask"][row].bool()
            if inside.any():
                ratio = (logps[row] - t["ref"][row])[inside].sum()
                weight = (logps[row] - t["old"][row])[inside].sum().exp().clamp(max=10).detach()
                losses.append(factor * weight * (0.1 * ratio - table[row, k]).square())
        expected += losses
        rows.append(sum(losses) / len(losses))
    result = run(trainer, toy_loss, t, segment_ids=ids, num_items_in_batch=torch.tensor(len(expected)))
    right = sum(rows) / 4 if loss_type == "grpo" else sum(expected) / len(expected)
    check_loss(result, right, logps, rtol=1e-10, atol=1e-12)


def test_policy_iteration_weighs_by_the_engine_that_sampled(make_trainer, toy_loss):
    t = toy()
    trainer = make_trainer("base", policy_loss="policy_iteration", beta=0.1, loss_type="dapo")
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    ratio = {"importance_sampling_ratio": torch.full_like(t["old"], 3.0)}
    plain = run(trainer, toy_loss, t, **ratio)
    sampler = t["old"] + 0.2
    sampler[2, 1] = math.nan  # vLLM may return it
    moved = run(trainer, toy_loss, t, sampling_per_token_logps=sampler, **ratio)
    trainer.use_vllm = False
    assert torch.equal(plain[0], run(trainer, toy_loss, t)[0]) and not torch.equal(plain[0], moved[0])
    assert moved[1].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_whitening_per_microbatch(make_trainer, toy_loss, masked):
    t = toy()
    knobs = {"token_mask": "probability", "probability_threshold": 0.4} if masked else {}
    white = make_trainer("base", loss_type="bnpo", whiten_advantages="microbatch", **knobs)
    kept = t["mask"] * (t["old"].exp() < 0.4 if masked else 1)
    values = t["advantages"].unsqueeze(1).expand(4, 7)[kept.bool()]
    result = run(white, toy_loss, t)
    t["advantages"] = (t["advantages"] - values.mean()) / (values.var() + 1e-8).sqrt()
    expected = run(make_trainer("base", loss_type="bnpo", **knobs), toy_loss, t)
    check_close(result, expected)


@pytest.mark.parametrize("kind", ["none", "sigmoid", "tanh", "sigmoid_grad", "tanh_grad"])
@pytest.mark.parametrize("direction", ["past", "future"])
@pytest.mark.parametrize("style", ["recent", "both"])
def test_the_loss_weight_times_confidence(make_trainer, toy_loss, direction, style, kind):
    """Off-policy: the weight multiplies PPO's loss of a token. The trace has no gradient; f has one if asked for."""
    t = toy()
    knobs = {"loss_weight": f"trace_{direction}", "trace_style": style, "loss_weight_confidence": kind}
    trainer = make_trainer("base", loss_type="dr_grpo", gamma=0.8, trace_lambda=0.5, **knobs)
    trace, x_t = trace_matrix(7, 0.8 * 0.5, style), t["logps"] - 1
    c_t = t["mask"].double() @ (trace.T if direction == "past" else trace)
    f_t = {"sigmoid": 1 + 1 / (1 + (-x_t).exp()), "tanh": 2 / (1 + (-2 * x_t).exp()), "none": torch.ones_like(x_t)}
    f_t = f_t[kind.removesuffix("_grad")]
    f_t = f_t if kind.endswith("_grad") else f_t.detach()
    expected = -(c_t * f_t * surrogate(t, t["advantages"].unsqueeze(1)) * t["mask"]).sum() / (4 * 8)
    check_loss(run(trainer, toy_loss, t), expected, t["logps"], rtol=1e-12, atol=1e-14)


# GRPO-λ's Algorithm 1, min(ρ, clip ρ)·A for both signs of A


RATIO = {"clip_form": "ratio"}
# the clip sees W and A alone, whatever they are made of
WEIGHTS = {
    "token": {},
    "recent": {"importance": "lambda_trace"},
    "both": {"importance": "lambda_trace", "trace_style": "both"},
    "loss_weight": {"loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"},
}


def literal_loss(t, name, *, low, high, loss_type, beta):
    """As Algorithm 1 has it, by dense matrices, with the KL on the plain log-probabilities."""
    mask_t, logps, c_t = t["mask"].double(), t["logps"], 1.0
    w_t = (logps - t["old"]) * mask_t
    if name in ("recent", "both"):
        w_t = w_t @ trace_matrix(7, 0.9, name).T
    if name == "loss_weight":
        c_t = mask_t @ trace_matrix(7, 0.9, "recent").T * (1 + torch.sigmoid(logps - 1))
    gain_t = torch.minimum(w_t.exp(), w_t.exp().clamp(low, high)) * t["advantages"].unsqueeze(1) * c_t
    loss_t = (beta * k3(t) - gain_t) * mask_t
    if loss_type == "grpo":
        return (loss_t.sum(1) / mask_t.sum(1)).mean()
    return loss_t.sum() / {"bnpo": mask_t.sum(), "dapo": mask_t.sum(), "dr_grpo": 4 * 8}[loss_type]


@pytest.mark.parametrize("loss_type, beta", [("grpo", 0.04), ("bnpo", 0.0), ("dr_grpo", 0.04), ("dapo", 0.0)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_loss_and_gradient_are_those_of_algorithm_1(make_trainer, toy_loss, name, loss_type, beta):
    plain_kl = {"use_bias_correction_kl": False} if beta else {}
    trainer = make_trainer("base", loss_type=loss_type, beta=beta, **plain_kl, **RATIO, **WEIGHTS[name])
    for low, high in ((0.2, 0.2), (0.05, 0.4), (0.3, 0.01), (0.0, 0.0)):
        t = toy()
        t["old"][1] += 0.5  # rows with A < 0, out of the range on either side
        t["old"][3] -= 0.5
        trainer.epsilon_low = trainer.args.epsilon = low  # TRL's loss reads the trainer's at every loss, ours the other
        trainer.epsilon_high, trainer.args.epsilon_high, trainer.args.clip_form = high, high, "ratio"
        expected = literal_loss(t, name, low=1 - low, high=1 + high, loss_type=loss_type, beta=beta)
        loss, grad = result = run(trainer, toy_loss, t)
        check_loss(result, expected, t["logps"], rtol=1e-12, atol=1e-13)
        # PPO's loss differs
        trainer.args.clip_form = "surrogate"
        other = run(trainer, toy_loss, t)
        assert (other[0] - loss).abs() > 1e-4 and (other[1] - grad).abs().max() > 1e-4


def test_a_ratio_without_bound_is_bounded_for_either_sign(make_trainer, toy_loss):
    t = toy()
    t["old"][3, 2] = -1e4  # A < 0, and ρ = e^10000
    loss, grad = run(make_trainer("base", loss_type="grpo", beta=0.0), toy_loss, t)
    assert not loss.isfinite()
    loss, grad = run(make_trainer("base", loss_type="grpo", beta=0.0, **RATIO), toy_loss, t)
    assert loss.isfinite() and grad.isfinite().all() and grad[3, 2] == 0 and (grad[3] != 0).any()


def test_logged_clip_fractions(make_trainer, toy_loss):
    t, mask = toy(), toy()["mask"].bool()
    trainer = make_trainer("base", loss_type="grpo", beta=0.0, epsilon=0.1, **RATIO)
    run(trainer, toy_loss, t)
    above = ((t["logps"] - t["old"]).exp() > 1.1) & mask
    positive = t["advantages"].unsqueeze(1) > 0
    metrics = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    assert metrics["credit/clip_fraction"] == pytest.approx(above.sum().item() / mask.sum().item())
    assert metrics["clip_ratio/low_mean"] == 0.0  # nothing is clipped below
    assert metrics["clip_ratio/high_mean"] == pytest.approx((above & positive).sum().item() / mask.sum().item())
    assert (above & positive).sum() < above.sum()


# The order of A and M, by hand


def test_the_order_of_advantages():
    """Baseline, difficulty, M, whitening over M, floor; whitening over a micro-batch comes after the cut."""
    tokens, rewards, lengths = made_up_tokens(), torch.tensor([1.0, 0, 0, 1, 1, 0]).double(), torch.arange(1, 7)
    knobs = {"baseline": "optimal", "difficulty": "fixed", "token_mask": "probability", "probability_threshold": 0.4}
    weighing = {"p_hat": rewards.view(2, 3).mean(1).repeat_interleave(3), "prior": 0.4}
    baseline = optimal_advantage(rewards, lengths=lengths, num_generations=3)
    difficulty = {"p_hat": weighing["p_hat"], "prior": 0.4, "scale": 1.3}
    weighted = baseline * difficulty_weight(baseline, **difficulty)
    kept_t = tokens.mask_t * (tokens.old_logp_t.exp() < 0.4)
    expected = whiten(weighted.unsqueeze(1).expand_as(kept_t), mask_t=kept_t).clamp(min=-0.5)
    parts = {name: getattr(tokens, name) for name in ("old_logp_t", "segment_ids", "mask_t")}
    for kind in ("batch", "microbatch"):
        config = args_of(**knobs, whiten_advantages=kind, advantage_floor=-0.5)
        first = outcome_advantages(config, rewards, lengths=lengths, num_generations=3)
        ordered = in_batch(config, first, **weighing, **parts)
        assert torch.equal(ordered.kept_t, kept_t) and (ordered.advantages.dim() == 1) == (kind == "microbatch")
        cut = {"advantages": ordered.advantages, "policy_mask_t": ordered.kept_t}
        advantages = in_loss(config, replace(tokens, **cut)).advantages
        torch.testing.assert_close(advantages.expand_as(kept_t)[kept_t > 0], expected[kept_t > 0])


def test_a_floor_acts_from_its_value_on(make_trainer, toy_loss):
    t = toy()
    for floor in (-0.5, 0.0, 0.9, 2.0):
        result = run(make_trainer("base", loss_type="dr_grpo", advantage_floor=floor), toy_loss, toy())[1]
        t["advantages"] = toy()["advantages"].clamp(min=floor)
        expected = run(make_trainer("base", loss_type="dr_grpo"), toy_loss, t)[1]
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
