"""Knobs at the ends of their ranges, through the real loss where a loss reads them: what the formulas become there."""

import math

import pytest
import torch
from toy_loss import run, toy

from trl_credit import CreditConfig
from trl_credit.credit import selection
from trl_credit.credit.advantages import trace_loss_weight
from trl_credit.credit.segments import best_of_value, cutpoint_boundaries
from trl_credit.credit.weights import lambda_trace_log_weight


PLAIN = {"loss_type": "dr_grpo", "beta": 0.0}


def gradient(make_trainer, toy_loss, *, with_old=True, **knobs):
    return run(make_trainer("base", **PLAIN, **knobs), toy_loss, toy(), with_old=with_old)[1]


def same(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("selector", ["entropy", "random"])
def test_a_rate_of_0_is_grpo_and_of_1_is_p_trace(make_trainer, toy_loss, selector):
    given = {"importance": "eligible", "selector": selector}
    same(
        gradient(make_trainer, toy_loss, **given, selective_rate=0.0),
        gradient(make_trainer, toy_loss),
    )
    p_trace = gradient(make_trainer, toy_loss, importance="eligible")
    assert (p_trace - gradient(make_trainer, toy_loss)).abs().max() > 1e-3
    for leave_own_out in (True, False):
        same(gradient(make_trainer, toy_loss, **given, selective_rate=1.0, leave_own_out=leave_own_out), p_trace)


def test_without_its_own_gradient_a_rate_of_0_learns_nothing(make_trainer, toy_loss):
    knobs = {"importance": "eligible", "selector": "entropy", "selective_rate": 0.0, "leave_own_out": False}
    assert not gradient(make_trainer, toy_loss, **knobs).any()


@pytest.mark.parametrize("decay", [{"trace_lambda": 0.0}, {"gamma": 0.0}], ids=str)
def test_without_decay_there_is_no_trace(make_trainer, toy_loss, decay):
    plain = gradient(make_trainer, toy_loss)
    same(gradient(make_trainer, toy_loss, importance="eligible", **decay), plain)
    # the selection of a token's own gradient is what is left of the ablation
    knobs = {"importance": "eligible", "selector": "entropy", "selective_rate": 0.5}
    same(gradient(make_trainer, toy_loss, **knobs, **decay), plain)
    own = gradient(make_trainer, toy_loss, **knobs, **decay, leave_own_out=False)
    t = toy()
    chosen = selection.select_high_entropy(t["entropies"], rate=0.5, mask_t=t["mask"])
    same(own, plain * chosen)
    for direction in ("past", "future"):
        same(gradient(make_trainer, toy_loss, loss_weight=f"trace_{direction}", **decay), plain)
    same(gradient(make_trainer, toy_loss, importance="lambda_trace", **decay), plain)


def test_a_trace_that_never_decays_credits_all_that_came_before(make_trainer, toy_loss):
    found = gradient(make_trainer, toy_loss, importance="eligible", trace_lambda=1.0, gamma=1.0, with_old=False)
    t = toy()
    mask = t["mask"].double()
    to_come = mask.flip(-1).cumsum(-1).flip(-1)  # on-policy: Σ_{l≥t} A over the loss tokens
    same(found, -t["advantages"].unsqueeze(1) * to_come * mask / mask.size(0) / 8)  # max_completion_length of the test


def test_both_without_decay_is_the_limit_of_its_formula():
    """tr(t,k) = max(g^(t−k), g^k) is 1 at the first token whatever g: as g → 0 that one alone is traced."""
    t = toy()
    given = {"old_logp_t": t["old"], "mask_t": torch.ones_like(t["mask"]), "style": "both"}
    ratio = t["logps"] - t["old"]
    limit = ratio + ratio[:, :1] * (torch.arange(7) > 0)
    same(lambda_trace_log_weight(t["logps"], decay=0.0, **given), limit)
    torch.testing.assert_close(lambda_trace_log_weight(t["logps"], decay=1e-9, **given), limit, rtol=0, atol=1e-7)
    same(trace_loss_weight("past", decay=0.0, style="both", mask_t=torch.ones(1, 3)), torch.tensor([[1.0, 2.0, 2.0]]))


def test_a_threshold_of_1_leaves_out_what_was_certain_alone(make_trainer, toy_loss):
    t = toy()
    t["old"] = t["old"].clamp(max=-1e-6)
    t["old"][2, 1] = 0.0
    trainers = [
        make_trainer("base", **PLAIN, token_mask="probability", probability_threshold=x)
        for x in (1.0, math.nextafter(1, 2))
    ]
    plain = run(make_trainer("base", **PLAIN), toy_loss, t)[1]
    one, more = (run(trainer, toy_loss, t)[1] for trainer in trainers)
    same(more, plain)
    assert plain[2, 1] != 0.0 and one[2, 1] == 0.0
    plain[2, 1] = 0.0
    same(one, plain)
    # as the cutpoints of a chain have it
    cut = cutpoint_boundaries(t["old"], threshold=1.0, interval=1, include_last=True, mask_t=t["mask"])
    assert torch.equal(cut, t["mask"].bool() & (t["old"] < 0.0))


def test_a_floor_acts_from_its_value_on(make_trainer, toy_loss):
    t = toy()
    for floor in (-0.5, 0.0, 0.9, 2.0):
        found = run(make_trainer("base", **PLAIN, advantage_floor=floor), toy_loss, toy())[1]
        t["advantages"] = toy()["advantages"].clamp(min=floor)
        same(found, run(make_trainer("base", **PLAIN), toy_loss, t)[1])
    assert not run(make_trainer("base", **PLAIN, advantage_floor=0.0), toy_loss, toy())[1][1].any()  # A was −0.5


def test_the_entropy_quantile_at_its_ends(make_trainer, toy_loss):
    """As TRL documents it: 1 keeps all, 0 the token of highest entropy of the micro-batch."""
    plain = gradient(make_trainer, toy_loss)
    same(gradient(make_trainer, toy_loss, top_entropy_quantile=1.0), plain)
    t = toy()
    highest = torch.where(t["mask"].bool(), t["entropies"], -1.0)
    found = gradient(make_trainer, toy_loss, top_entropy_quantile=0.0)
    same(found, torch.where(highest == highest.max(), plain, 0.0))


def test_the_best_of_one_try_is_the_value():
    value = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    same(best_of_value(value, best_of=1), value)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("knob", ["trace_lambda", "gamma", "selective_rate"])
def test_the_ends_are_legal(knob, value, tmp_path):
    given = {"importance": "eligible", "selector": "entropy"}
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", **given, **{knob: value})
    assert getattr(config, knob) == value
