"""Policy iteration, whitening, floor, loss weights and knobs at their ends, through TRL's `_compute_loss`."""

import math

import pytest
import torch
from toy_loss import check_close, check_loss, run, toy


@pytest.mark.parametrize("half", [False, True], ids=["paper", "code"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
def test_policy_iteration_in_closed_form(make_trainer, toy_loss, loss_type, half):
    t = toy()
    ids = torch.tensor([[0, 0, 1, 1, -1, -1, -1], [0, 0, 0, 0, 1, 1, 1], [0] * 7, [-1, 0, 0, 1, 1, 2, 2]])
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t["advantages"] = table.gather(1, ids.clamp(min=0)) * (ids >= 0)
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
    t, g = toy(), 0.9
    trainer = make_trainer(
        "base", loss_type="dr_grpo", loss_weight=f"trace_{direction}", trace_style=style, loss_weight_confidence=kind
    )
    expected = 0.0
    for b in range(4):
        for i in range(7):
            pairs = [(i, k) if direction == "past" else (k, i) for k in range(7) if t["mask"][b, k]]
            c = sum(max(g ** (j - k), g**k if style == "both" else 0.0) for j, k in pairs if k <= j)
            x = t["logps"][b, i] - 1
            f = {"sigmoid": 1 + 1 / (1 + (-x).exp()), "tanh": 2 / (1 + (-2 * x).exp()), "none": torch.ones_like(x)}
            f = f[kind.removesuffix("_grad")]
            f = f if kind.endswith("_grad") else f.detach()
            ratio, a = (t["logps"][b, i] - t["old"][b, i]).exp(), t["advantages"][b]
            surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
            expected = expected - c * f * t["mask"][b, i].item() * surrogate / (4 * 8)
    check_loss(run(trainer, toy_loss, t), expected, t["logps"], rtol=1e-12, atol=1e-14)


def gradient(make_trainer, toy_loss, **knobs):
    return run(make_trainer("base", loss_type="dr_grpo", **knobs), toy_loss, toy())[1]


@pytest.mark.parametrize("selector", ["entropy", "random"])
def test_a_rate_of_0_is_grpo_and_of_1_is_p_trace(make_trainer, toy_loss, selector):
    plain, p_trace = (gradient(make_trainer, toy_loss, importance=name) for name in ("token", "eligible"))
    assert (p_trace - plain).abs().max() > 1e-3
    # a rate of 0 that leaves out a token's own gradient leaves nothing
    for leave_own_out, least in ((True, plain), (False, torch.zeros_like(plain))):
        for rate, expected in ((0.0, least), (1.0, p_trace)):
            knobs = {"selector": selector, "selective_rate": rate, "leave_own_out": leave_own_out}
            result = gradient(make_trainer, toy_loss, importance="eligible", **knobs)
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)


def test_a_floor_acts_from_its_value_on(make_trainer, toy_loss):
    t = toy()
    for floor in (-0.5, 0.0, 0.9, 2.0):
        result = gradient(make_trainer, toy_loss, advantage_floor=floor)
        t["advantages"] = toy()["advantages"].clamp(min=floor)
        expected = run(make_trainer("base", loss_type="dr_grpo"), toy_loss, t)[1]
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
