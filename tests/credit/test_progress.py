"""docs/theory.md, "On-policy traces" and "What a selector can gain": coefficients, the end of a response, progress."""

from functools import partial

import pytest
import torch
from theorems import relative_progress

from trl_credit.credit.shares import last_tokens
from trl_credit.credit.weights import eligible_log_weight, traced_credit


tensor64 = partial(torch.tensor, dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
def test_the_coefficients_at_ratio_1(decay):
    n = 37
    k, ones = torch.arange(1, n + 1, dtype=torch.float64), torch.ones(1, n, dtype=torch.float64)
    z = (torch.rand(1, n, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    p_trace = (1 - decay ** (n - k + 1)) / (1 - decay)
    s_trace = 1 + z * decay * (1 - decay ** (n - k)) / (1 - decay)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(traced_credit(ones, decay=decay, style="recent")[0], p_trace, **close)
    logp_t = torch.zeros_like(ones).requires_grad_()
    for selected_t, coefficients in ((None, p_trace.unsqueeze(0)), (z, s_trace)):
        log_weight_t = eligible_log_weight(logp_t, old_logp_t=-ones, decay=decay, selected_t=selected_t, mask_t=ones)
        torch.testing.assert_close(torch.autograd.grad(log_weight_t.sum(), logp_t)[0], coefficients, **close)
    assert p_trace[-1] == pytest.approx(1.0) and s_trace[0, -1] == 1.0


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
