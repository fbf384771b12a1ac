"""Weights, selections, masks, advantages and signal of groups: slow references, limits and properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import trace_matrix
from trl.trainer.utils import nanstd

from trl_credit.credit import selection, weights
from trl_credit.credit.advantages import confidence_weight, group_advantage, optimal_advantage, trace_loss_weight
from trl_credit.credit.gradient import PolicyTerm, token_credit
from trl_credit.credit.groups import batch_scaled_advantages, has_difference


def rows(seed, batch=3, length=11):
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(batch, length, generator=g, dtype=torch.float64) * 2
    old = logp + 0.3 * torch.randn(batch, length, generator=g, dtype=torch.float64)
    mask = (torch.rand(batch, length, generator=g) < 0.7).long()
    return logp.requires_grad_(), old, mask, torch.rand(batch, length, generator=g, dtype=torch.float64)


DRAWN = {"seed": st.integers(0, 10**6), "length": st.integers(1, 40), "decay": st.sampled_from([0.0, 0.5, 0.9, 1.0])}


@settings(max_examples=40, deadline=None)
@given(**DRAWN, style=st.sampled_from(["recent", "both"]))
def test_lambda_trace_and_loss_weights_against_the_matrix(seed, length, decay, style):
    logp, old, mask, _ = rows(seed, length=length)
    m = mask.double()
    trace = trace_matrix(length, decay, style)
    w = weights.lambda_trace_log_weight(logp, old_logp_t=old, decay=decay, style=style, mask_t=mask)
    torch.testing.assert_close(w, ((logp - old) * m) @ trace.T, rtol=1e-10, atol=1e-10)
    past = trace_loss_weight("past", decay=decay, style=style, mask_t=m)
    future = trace_loss_weight("future", decay=decay, style=style, mask_t=m)
    torch.testing.assert_close(past, m @ trace.T, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(future, m @ trace, rtol=1e-10, atol=1e-10)


def test_confidence_by_hand():
    logp = torch.tensor([[0.0, -1.0, -1e4, -math.inf, math.nan]], dtype=torch.float64, requires_grad=True)
    f = confidence_weight(logp, mask_t=torch.tensor([[1, 1, 1, 1, 0]]))
    expected = [1 + 1 / (1 + math.e), 1 + 1 / (1 + math.e**2), 1.0, 1.0, 1.0]
    torch.testing.assert_close(f, torch.tensor([expected], dtype=torch.float64), rtol=1e-15, atol=0)
    assert not f.requires_grad


@settings(max_examples=40, deadline=None)
@given(**DRAWN)
def test_the_credit_of_eligible_weights_against_the_matrix(seed, length, decay):
    logp, old, mask, chance = rows(seed, length=length)
    z = (chance < 0.4).double()
    w = weights.eligible_log_weight(logp, old_logp_t=old, decay=decay, selected_t=z, mask_t=mask)
    upstream = torch.randn_like(logp) * mask
    (grad,) = torch.autograd.grad((w * upstream).sum(), logp, retain_graph=True)
    earlier = trace_matrix(length, decay, "recent") - torch.eye(length, dtype=torch.float64)
    torch.testing.assert_close(grad, upstream + z * mask * (upstream @ earlier), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(w.detach(), (logp - old).detach() * mask, rtol=0, atol=0)  # the value is GRPO's
    every = {"term": PolicyTerm(clip_range=(0.0, math.inf)), "kept_t": mask, "mask_t": mask}
    credit = token_credit(w, logp_t=logp, advantage_t=upstream * w.detach().neg().exp(), **every)
    torch.testing.assert_close(credit, grad, rtol=1e-10, atol=1e-10)


def test_selection_counts_ties_and_mask():
    entropy = torch.tensor([[9.0, 1.0, 3.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    z = selection.select_high_entropy(entropy, rate=0.4, mask_t=mask)
    assert z.tolist() == [[0, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]  # the masked 9 is never taken, ties keep the earlier
    for rate, counts in ((0.2, [1, 1]), (0.21, [2, 2]), (0.0, [0, 0])):  # ⌈0.2 · 5⌉ = 1
        assert selection.select_high_entropy(entropy, rate=rate, mask_t=mask).sum(-1).tolist() == counts
    assert torch.equal(selection.select_high_entropy(entropy, rate=1.0, mask_t=mask), mask.float())
    assert selection.select_high_entropy(torch.ones(1, 4), rate=0.5, mask_t=torch.zeros(1, 4)).sum() == 0
    ranks = torch.tensor([[3, 1, 2, 4]])  # any score of a custom selector, also one for all rows
    z = selection.select_high_entropy(ranks, rate=0.5, mask_t=torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]))
    assert z.is_floating_point() and z.tolist() == [[1, 0, 0, 1], [1, 0, 1, 0]]


def test_random_selection_has_the_expected_share_and_a_seed():
    mask = torch.ones(100, 200)
    mask[:, 150:] = 0
    draw = [selection.select_random(0.2, generator=torch.Generator().manual_seed(7), mask_t=mask) for _ in range(2)]
    assert torch.equal(*draw) and draw[0][:, 150:].sum() == 0
    share = draw[0].sum() / mask.sum()
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / mask.sum()) ** 0.5
    narrow = selection.select_random(0.2, generator=torch.Generator().manual_seed(7), mask_t=mask[:, :150])
    assert torch.equal(draw[0][:, :150], narrow)  # whatever the padding


def test_probability_mask_is_strict():
    logp = torch.tensor([[0.9, 0.8999, 0.5, 1.0]], dtype=torch.float64).log()
    mask = torch.tensor([[1, 1, 0, 1]])
    logp[0, 0] = math.log(0.9) + 1e-15
    assert selection.probability_mask(logp, threshold=0.9, mask_t=mask).tolist() == [[0, 1, 0, 0]]
    assert torch.equal(selection.probability_mask(logp, threshold=1.1, mask_t=mask), mask)


def test_group_advantage_by_hand():
    a = group_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, math.nan, 0.0]), num_generations=4)
    std = (0.75**2 + 3 * 0.25**2) / 3
    assert a[0] == pytest.approx(0.75 / (std**0.5 + 1e-4))
    assert a[6] == 0 and a[4] == pytest.approx((1 / 3) / ((1 / 3) ** 0.5 + 1e-4))


def test_optimal_advantage_by_hand():
    rewards, lengths = torch.tensor([1.0, 0.0, 1.0, math.nan, 1.0, 0.0]), torch.tensor([10, 30, 0, 5, 0, 0])
    a = optimal_advantage(rewards, lengths=lengths, num_generations=2)
    # 10/40; a group whose only scored response has no tokens; a group without any token: the plain mean
    assert a.tolist() == pytest.approx([0.75, -0.25, 0.0, 0.0, 0.5, -0.5])


# Which groups have signal


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 0, 0], False),
        ([1, 1, 1, 1], False),
        ([0, 0, 0, 1], True),
        ([0, 0, 0, math.nan], False),
        ([0, 1, math.nan, math.nan], True),
        ([math.nan] * 4, False),
        ([math.nan, 1, math.nan, math.nan], False),  # one response alone differs from none
        ([-math.inf, 0, 0, 0], True),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], True),  # a std of 3e-17 is no rounding error here
        ([1 / 3] * 4, False),  # whose std may round to another number than 0
    ],
)
def test_whether_a_group_differs(values, expected):
    both = torch.tensor([*values, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert has_difference(both, num_generations=4).tolist() == [expected, True]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, math.nan]), min_size=3, max_size=12).filter(lambda x: len(x) % 3 == 0))
def test_advantages_scaled_by_the_batch_are_those_of_trl(rewards):
    rewards = torch.tensor(rewards)
    mean = rewards.view(-1, 3).nanmean(1).repeat_interleave(3)
    scored = int((~rewards.isnan()).sum())
    std = nanstd(rewards) if scored > 1 else torch.tensor(0.0)
    expected = ((rewards - mean) / (std + 1e-4)).nan_to_num(nan=0.0)
    advantages = batch_scaled_advantages(rewards, num_generations=3)
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-6)
