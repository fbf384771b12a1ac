"""Knobs at the ends of their ranges, through the real loss where a loss reads them: what the formulas become there."""

import pytest
import torch
from toy_loss import run, toy

from trl_credit.credit import selection


PLAIN = {"loss_type": "dr_grpo", "beta": 0.0}


def gradient(make_trainer, toy_loss, *, with_old=True, **knobs):
    return run(make_trainer("base", **PLAIN, **knobs), toy_loss, toy(), with_old=with_old)[1]


def same(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("selector", ["entropy", "random"])
def test_a_rate_of_0_is_grpo_and_of_1_is_p_trace(make_trainer, toy_loss, selector):
    given = {"importance": "eligible", "selector": selector}
    plain, p_trace = (gradient(make_trainer, toy_loss, importance=name) for name in ("token", "eligible"))
    assert (p_trace - plain).abs().max() > 1e-3
    # a rate of 0 that leaves out a token's own gradient leaves nothing
    for leave_own_out, least in ((True, plain), (False, torch.zeros_like(plain))):
        for rate, expected in ((0.0, least), (1.0, p_trace)):
            knobs = {**given, "selective_rate": rate, "leave_own_out": leave_own_out}
            same(gradient(make_trainer, toy_loss, **knobs), expected)


def test_without_decay_a_selected_token_keeps_its_own_gradient(make_trainer, toy_loss):
    """What is left of the ablation without `leave_own_out`."""
    knobs = {"importance": "eligible", "selector": "entropy", "selective_rate": 0.5, "leave_own_out": False}
    own, t = gradient(make_trainer, toy_loss, **knobs, trace_lambda=0.0), toy()
    chosen = selection.select_high_entropy(t["entropies"], rate=0.5, mask_t=t["mask"])
    same(own, gradient(make_trainer, toy_loss) * chosen)


def test_a_trace_that_never_decays_credits_all_that_came_before(make_trainer, toy_loss):
    found = gradient(make_trainer, toy_loss, importance="eligible", trace_lambda=1.0, gamma=1.0, with_old=False)
    t = toy()
    mask = t["mask"].double()
    to_come = mask.flip(-1).cumsum(-1).flip(-1)  # on-policy: Σ_{l≥t} A over the loss tokens
    same(found, -t["advantages"].unsqueeze(1) * to_come * mask / mask.size(0) / 8)  # max_completion_length of the test


def test_a_floor_acts_from_its_value_on(make_trainer, toy_loss):
    t = toy()
    for floor in (-0.5, 0.0, 0.9, 2.0):
        found = run(make_trainer("base", **PLAIN, advantage_floor=floor), toy_loss, toy())[1]
        t["advantages"] = toy()["advantages"].clamp(min=floor)
        same(found, run(make_trainer("base", **PLAIN), toy_loss, t)[1])
    assert not run(make_trainer("base", **PLAIN, advantage_floor=0.0), toy_loss, toy())[1][1].any()  # A was −0.5
