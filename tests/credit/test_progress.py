"""docs/theory.md, "On-policy traces" and "What a selector can gain": the end of a response, progress, and noise.

Both shares are compared with sums over tokens in tests/loss/test_metrics.py."""

from functools import partial

import pytest
import torch
from theorems import relative_progress

from trl_credit.credit.shares import last_tokens, noise_outside
from trl_credit.credit.weights import traced_credit


tensor64 = partial(torch.tensor, dtype=torch.float64)


@pytest.mark.parametrize(("decay", "tokens", "share"), [(0.9, 28, 0.605), (0.99, 298, 0.099)])
def test_the_end_of_a_long_response(decay, tokens, share):
    """The tokens whose coefficient is more than 5 % below 1/(1 − g), and the last 20 tokens' share."""
    c = traced_credit(torch.ones(1, 40_000, dtype=torch.float64), decay=decay, style="recent")
    assert (c < 0.95 / (1 - decay)).sum() == tokens
    above, below = last_tokens(c, mask_t=torch.ones_like(c))
    assert (above / below).item() == pytest.approx(share, abs=0.003)


@pytest.mark.parametrize("share", [0.0, 0.16, 0.68, 0.9])
def test_what_a_selector_gains_at_most(share):
    signal, noise = tensor64([1.0, 0.0]), tensor64([1 - share, share])
    gains = relative_progress(tensor64([[10.0, 1.0], [1.0, 0.0]]), signal_t=signal, noise_t=noise)
    assert gains.tolist() == pytest.approx([1 / (1 - share + share / 100), 1 / (1 - share)])
    missed = relative_progress(tensor64([10.0, 1.0]), signal_t=tensor64([0.0, 1.0]), noise_t=noise)
    assert missed.item() == pytest.approx(1 / (share + 100 * (1 - share)))


def test_the_noise_of_a_sure_token_is_not_rounded_away_and_nothing_is_read_outside_of_the_mask():
    logp, mask = torch.tensor([[-1e-9, torch.nan]]), torch.tensor([[1.0, 0.0]])
    assert noise_outside(logp, selected_t=torch.zeros(1, 2), mask_t=mask)[1].item() == pytest.approx(1e-9)
    assert [x.item() for x in last_tokens(torch.tensor([[-2.0, torch.nan]]), mask_t=mask)] == [2.0, 2.0]
