"""Weights, per turn too, selections, masks, advantages and signal of groups: slow references, limits and properties."""

import math
from dataclasses import replace

import pytest
import torch
from custom_functions import args_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import trace_matrix
from trl.trainer.utils import nanstd
from turn_helpers import TURN_FORMS, turn_jacobian

from trl_credit.credit import selection, weights
from trl_credit.credit.advantages import confidence_weight, group_advantage, optimal_advantage, trace_loss_weight
from trl_credit.credit.gradient import PolicyTerm, token_credit
from trl_credit.credit.groups import batch_scaled_advantages, has_difference
from trl_credit.credit.scan import discounted_scan, reverse_discounted_scan
from trl_credit.credit.tokens import turn_numbers
from trl_credit.loss.assignment import assign_credit
from trl_credit.testing import made_up_tokens


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


# Per turn


DECAYS = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def conversation(seed, *, batch=3, length=13):
    """Tokens of rows with turns, holes inside of turns, and whole turns outside of the loss."""
    g = torch.Generator().manual_seed(seed)
    written = torch.rand(batch, length, generator=g) < 0.75
    turn_ids = turn_numbers(written)
    mask = (written & (torch.rand(batch, length, generator=g) < 0.8) & (turn_ids != seed % 3)).double()
    logp = -2 * torch.rand(batch, length, generator=g, dtype=torch.float64)
    old = logp + 0.3 * torch.randn(batch, length, generator=g, dtype=torch.float64)
    tokens = made_up_tokens()
    by_token = torch.randn(batch, length, generator=g, dtype=torch.float64)
    dirty = torch.where(mask.bool(), 0.0, torch.nan)
    of_tokens = {"logp_t": (logp + dirty).requires_grad_(), "old_logp_t": old + dirty, "advantages": by_token}
    of_tokens |= {"entropy_t": torch.rand(batch, length, generator=g, dtype=torch.float64) + dirty}
    of_tokens |= dict.fromkeys(("ref_logp_t", "sampling_logp_t", "ref_entropy_t"))
    ids = {"token_ids": torch.zeros(batch, length, dtype=torch.long), "segment_ids": mask.long() - 1}
    return replace(tokens, **of_tokens, **ids, turn_ids=turn_ids, policy_mask_t=mask, mask_t=mask)


@pytest.mark.parametrize("form", TURN_FORMS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), decay=DECAYS)
def test_weights_and_credit_against_the_matrix(form, seed, decay):
    knobs = {"trace_lambda": decay} if "trace_unit" in TURN_FORMS[form] else {}
    config = args_of(loss_type="grpo", **TURN_FORMS[form], **knobs)
    tokens = conversation(seed)
    credit = assign_credit(config, tokens)
    c_t = tokens.advantages * tokens.mask_t
    z = credit.selected
    ids, masks = tokens.turn_ids.tolist(), tokens.mask_t.tolist()
    selected = [None] * len(ids) if z is None else z.tolist()
    jacobian = torch.stack([turn_jacobian(config, *row) for row in zip(ids, masks, selected, strict=True)])
    total = torch.where(tokens.mask_t.bool(), credit.log_weight * c_t, 0.0).sum()
    (gradient,) = torch.autograd.grad(total, tokens.logp_t, retain_graph=True)
    torch.testing.assert_close(gradient, torch.einsum("bt,btk->bk", c_t, jacobian), rtol=1e-12, atol=1e-12)
    ratio_t = torch.where(tokens.mask_t.bool(), credit.log_weight.detach(), 0.0).exp()
    every = {"kept_t": tokens.mask_t, "mask_t": tokens.mask_t, "term": PolicyTerm(clip_range=(0.0, torch.inf))}
    credit_t = token_credit(credit.log_weight, logp_t=tokens.logp_t, advantage_t=tokens.advantages, **every)
    expected = torch.einsum("bt,btk->bk", c_t * ratio_t, jacobian)
    torch.testing.assert_close(credit_t, expected, rtol=1e-12, atol=1e-12)
    difference = (tokens.logp_t - tokens.old_logp_t).detach().nan_to_num()
    value = difference
    if form.startswith(("turn", "lambda")):
        of_value = args_of(loss_type="grpo", importance="turn") if form == "turn_token" else config
        dense = torch.stack([turn_jacobian(of_value, *row) for row in zip(ids, masks, strict=True)])
        value = torch.einsum("btk,bk->bt", dense, difference)
    log_weight_t = credit.log_weight.detach() * tokens.mask_t
    torch.testing.assert_close(log_weight_t, value * tokens.mask_t, rtol=1e-12, atol=1e-12)


# Selection


def test_selectors_choose_among_turns_by_their_mean_entropy():
    tokens = conversation(1, batch=2, length=9)
    ids = torch.tensor([[0, 0, -1, 1, 1, 1, -1, 2, -1], [0, -1, 1, -1, 2, -1, 3, -1, 4]])
    mask = (ids >= 0).double()
    mask[0, 5] = 0
    entropy = torch.tensor([[1.0, 2, 9, 3, 0, 50, 9, 1.4, 9], [5, 9, 1, 9, 2, 9, 7, 9, 3]], dtype=torch.float64)
    plain = {"logp_t": -torch.ones(2, 9, dtype=torch.float64), "old_logp_t": -torch.ones(2, 9, dtype=torch.float64)}
    plain |= {"ref_entropy_t": -entropy, "policy_mask_t": mask, "mask_t": mask, "turn_ids": ids, "entropy_t": entropy}
    tokens = replace(tokens, **plain, advantages=torch.ones(2, dtype=torch.float64))
    trace = {"importance": "eligible", "trace_unit": "turn", "beta": 0.1, "use_bias_correction_kl": False}

    def turns_of(**knobs):
        z = assign_credit(args_of(loss_type="grpo", **trace, **knobs), tokens).selected
        assert z.shape == mask.shape and not z[mask == 0].any()
        for row, own, m in zip(z, ids, mask, strict=True):  # all loss tokens of a turn alike
            assert all(len(row[(own == turn) & m.bool()].unique()) <= 1 for turn in own.unique())
        return [sorted(own[row > 0].unique().tolist()) for own, row in zip(ids, z, strict=True)]

    # means 1.5, 1.5, 1.4: the earlier of equal turns; ⌈0.3 · 3⌉ = 1, ⌈0.3 · 5⌉ = 2
    assert turns_of(selector="entropy", selective_rate=0.3) == [[0], [0, 3]]
    assert turns_of(selector="entropy_reference", selective_rate=0.3) == [[2], [1, 2]]
    assert turns_of(selector="entropy", selective_rate=0.0) == [[], []]
    assert turns_of(selector="random", selective_rate=1.0) == [[0, 1, 2], [0, 1, 2, 3, 4]]
    seen = []

    def last(entropy_t, *, rate, mask_t):
        seen.append((entropy_t, rate, mask_t))
        places = torch.arange(mask_t.size(1)) * mask_t
        return (places == places.amax(-1, keepdim=True)) * mask_t

    assert turns_of(selector=last, selective_rate=0.3) == [[2], [4]]
    ((table, rate, there),) = seen
    assert rate == 0.3 and there.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    torch.testing.assert_close(table[0, :3], torch.tensor([1.5, 1.5, 1.4], dtype=torch.float64))


# The blocked scan against the recursion it computes


def slow_scan(x, decay):
    out, s = [], torch.zeros_like(x[..., 0])
    for t in range(x.size(-1)):
        s = x[..., t] + decay * s
        out.append(s)
    return torch.stack(out, -1) if out else x


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 300),
    decay=st.sampled_from([0.0, 1e-3, 0.5, 0.9, 0.99, 0.999999, 1.0]) | st.floats(0, 1),
    block=st.sampled_from([2, 7, 32, 64]),
)
def test_equals_the_recursion(length, decay, block):
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    found = discounted_scan(x, decay=decay, block=block)
    torch.testing.assert_close(found, slow_scan(x, decay), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1024, 1025, 4097])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999, 1.0])
def test_float32_across_block_levels(length, decay):
    x = torch.randn(2, length, generator=torch.Generator().manual_seed(0))
    found = discounted_scan(x, decay=decay).double()
    torch.testing.assert_close(found, slow_scan(x.double(), decay), rtol=1e-5, atol=1e-4)


def test_bfloat16_and_autocast_accumulate_in_float32():
    x = torch.rand(2, 2048, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = slow_scan(x.double(), 0.999)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = discounted_scan(x, decay=0.999)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_compiles_without_a_graph_break():
    compiled = torch.compile(lambda x: discounted_scan(x, decay=0.9), fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 100, requires_grad=True)
    torch.testing.assert_close(compiled(x), discounted_scan(x, decay=0.9))
    upstream = torch.randn(2, 100)
    compiled(x).backward(upstream)
    torch.testing.assert_close(x.grad, reverse_discounted_scan(upstream, decay=0.9))
