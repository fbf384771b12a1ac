"""Weights per turn against slow references, their limits, and what must not change a gradient."""

from dataclasses import replace

import pytest
import torch
from custom_functions import args_of
from hypothesis import given, settings
from hypothesis import strategies as st
from turn_helpers import TURN_FORMS, turn_jacobian

from trl_credit.credit.gradient import PolicyTerm, token_credit
from trl_credit.credit.tokens import turn_numbers
from trl_credit.loss.assignment import assign_credit
from trl_credit.testing import made_up_tokens


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
