"""FIPO: loss and gradient in closed form through TRL's real loss, its identity without drift, what is refused."""

import logging

import pytest
import torch
from toy_loss import check_loss, check_same, k3, run, surrogate, toy

from trl_credit.credit.future_kl import future_kl_weight


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"future_clip": [0.8, 1.2], "future_half_life": 2},
        {"future_ratio_max": 1.1},
        {"future_safety_ratio": 1.05},
        {"token_mask": "probability", "probability_threshold": 0.5, "loss_type": "bnpo"},  # their drift is left out
    ],
    ids=str,
)
def test_loss_and_gradient_in_closed_form(make_trainer, toy_loss, knobs, beta):
    t = toy()
    kept = t["mask"].bool()
    if "token_mask" in knobs:
        kept = kept & (t["old"].exp() < 0.5)
        assert 0 < kept.sum() < t["mask"].sum()
    settings = {"half_life": knobs.get("future_half_life", 32.0), "ratio_max": knobs.get("future_ratio_max", 10.0)}
    settings |= {"clip_range": tuple(knobs.get("future_clip", (1.0, 1.2))), "mask_t": kept}
    settings |= {"safety_ratio": knobs.get("future_safety_ratio", 10.0)}
    a = t["advantages"].unsqueeze(1)
    factor_t = future_kl_weight(t["logps"], old_logp_t=t["old"], advantage_t=a, **settings)
    assert ((factor_t > 1) & (factor_t < 1.2)).any() and not factor_t.requires_grad
    gain_t = torch.where(kept, surrogate(t, a * factor_t, high=1.28), 0.0)
    expected = (beta * k3(t) * t["mask"] - gain_t).sum() / kept.sum()
    check_loss(run(make_trainer("fipo", beta=beta, **knobs), toy_loss, t), expected, t["logps"])


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_without_drift_it_is_dapo_to_the_last_bit(make_trainer, toy_loss, beta):
    t = toy()
    t["old"] = t["logps"].detach().clone()
    check_same(*(run(make_trainer(algo, beta=beta), toy_loss, t) for algo in ("fipo", "dapo")))
    drifted = toy()
    fipo, dapo = (run(make_trainer(algo, beta=beta), toy_loss, drifted)[1] for algo in ("fipo", "dapo"))
    assert not torch.equal(fipo, dapo)


@pytest.mark.parametrize("drop", [None, 2])
def test_the_released_code_drops_a_response_with_two_dual_clipped_tokens(make_trainer, toy_loss, drop):
    """Tokens of A < 0 with a ratio above 10 have no gradient anyway; with two of them none of the response has."""
    t = toy()
    above = torch.zeros_like(t["mask"], dtype=torch.bool)
    above[0, :3] = above[1, :2] = above[2, :1] = True
    t["advantages"] = torch.tensor([1.0, -1.0, -0.5, 0.7], dtype=torch.float64)
    t["mask"][:] = 1
    t["old"] = torch.where(above, t["logps"].detach() - 2.5, t["old"].clamp(min=t["logps"].detach() - 1))
    knobs = {"future_drop_clipped": drop, "future_clip": [1.0, 1.0 + 1e-15], "loss_type": "bnpo"}
    ratio, a = (t["logps"] - t["old"]).exp(), t["advantages"].unsqueeze(1)
    assert ((ratio > 10) == above).all()
    loss_t = -torch.minimum(ratio.clamp(max=10) * a, ratio.clamp(0.8, 1.28) * a)
    if drop:
        loss_t = torch.cat([loss_t[:1], 0 * loss_t[1:2], loss_t[2:]])
    check_loss(run(make_trainer("fipo", **knobs), toy_loss, t), loss_t.mean(), t["logps"])


def test_one_update_per_batch_is_said_to_change_nothing(make_trainer, caplog):
    with caplog.at_level(logging.WARNING):
        make_trainer("fipo", steps_per_generation=1)
    (warned,) = [record.getMessage() for record in caplog.records if "changes nothing" in record.getMessage()]
    for name in ("steps_per_generation", "num_iterations", "presets.fipo"):
        assert name in warned
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        make_trainer("fipo"), make_trainer("fipo", num_iterations=2)
    assert "changes nothing" not in caplog.text
