"""Padding, tool tokens and masked rows may have any log-probability: it reaches neither loss nor gradient."""

import math

import pytest
import torch
from conftest import toy_inputs
from toy_loss import check_same, toy

import trl_credit
from trl_credit.loss import keys


WRONG = (math.inf, -math.inf, math.nan)
CASES = [(name, {}) for name in sorted(trl_credit.ALGORITHMS)]
CASES += [("base", {"loss_type": name}) for name in ("bnpo", "dr_grpo", "cispo", "sapo", "vespo")]
CASES += [("base", {"importance": "sequence"}), ("base", {"off_policy_mask_threshold": 0.5})]
CASES += [("base", {"use_bias_correction_kl": True}), ("base", {"entropy_coef": 0.01, "top_entropy_quantile": 0.5})]


def result(trainer, toy_loss, t, outside, **wrong):
    """Loss, gradient inside of the loss, and metrics, where `wrong` are values outside of it."""
    tensors = {name: t[name].detach().clone() for name in ("logps", "old", "ref", "entropies")}
    tensors["sampling"] = tensors["old"].clone()
    ratio = torch.ones_like(tensors["old"])
    for name, value in wrong.items():
        (ratio if name == "ratio" else tensors[name])[outside] = value
    logps = tensors["logps"].requires_grad_()
    logps_of = {keys.OLD_LOGPS: "old", keys.REF_LOGPS: "ref", keys.SAMPLING_LOGPS: "sampling"}
    others = {key: tensors[name] for key, name in logps_of.items()}
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], importance_sampling_ratio=ratio, **others)
    trainer._metrics["eval"].clear(), trainer._metrics["train"].clear(), trainer._meter.clear()
    loss = toy_loss(trainer, inputs, logps=logps, entropies=tensors["entropies"])
    (gradient,) = torch.autograd.grad(loss, logps)
    assert not gradient[outside].any()
    metrics = {name: torch.tensor(x) for mode in trainer._metrics.values() for name, x in mode.items()}
    return loss, gradient, metrics


@pytest.mark.hostile("tokens outside of the loss", "survived")
@pytest.mark.parametrize(("algo", "settings"), CASES, ids=str)
def test_what_is_outside_changes_nothing(make_trainer, toy_loss, algo, settings):
    trainer = make_trainer(algo, beta=0.04 if algo != "opo" else 0.0, **settings)
    t = toy()
    t["mask"][2] = 0  # a row that is masked as a whole
    outside = t["mask"] == 0
    plain = result(trainer, toy_loss, t, outside)
    for value in WRONG:
        for name in ("logps", "old", "ref", "sampling", "entropies", "ratio"):
            loss, gradient, metrics = result(trainer, toy_loss, t, outside, **{name: value})
            check_same((loss, gradient), plain[:2])
            assert metrics.keys() == plain[2].keys()
            for key, x in metrics.items():
                torch.testing.assert_close(x, plain[2][key], equal_nan=True, msg=f"{key} with {name} {value}")
