"""FIPO's factor against a slow reference, at its limits, and with hostile values."""

import math

import pytest
import torch

from trl_credit.credit.future_kl import future_kl_weight


def slow(logp, old, advantage, mask, *, half_life, low, high, ratio_max, safety_ratio):
    """Token by token, O(T²)."""
    gamma, factor_t = 2.0 ** (-1.0 / half_life), torch.ones_like(old)
    for b in range(len(old)):
        for t in range(old.size(1)):
            if not mask[b, t]:
                continue
            future = 0.0
            for k in range(t, old.size(1)):
                drift = (logp[b, k] - old[b, k]).item()
                if mask[b, k] and not (ratio_max is not None and math.exp(drift) > ratio_max):
                    future += gamma ** (k - t) * drift
            f = min(max(math.exp(future), low), high)
            if advantage[b] < 0 and math.exp((logp[b, t] - old[b, t]).item()) > safety_ratio:
                f = min(max(f, 0.8), 1.0)
            factor_t[b, t] = f
    return factor_t


def drifted(seed=0, rows=5, length=60, scale=0.8):
    g = torch.Generator().manual_seed(seed)
    old = -2.0 * torch.rand(rows, length, generator=g, dtype=torch.float64)
    logp = old + scale * torch.randn(rows, length, generator=g, dtype=torch.float64)
    mask = torch.ones(rows, length, dtype=torch.float64)
    mask[1, 40:], mask[2, 10:20], mask[3] = 0, 0, 0
    logp, old = (x.masked_fill(mask == 0, math.nan) for x in (logp, old))  # where nothing may be read
    return logp, old, torch.tensor([1.0, -1.0, -0.5, 2.0, 0.0], dtype=torch.float64), mask


def weight(logp, old, advantage, mask, **settings):
    settings = {"half_life": 32.0, "clip_range": (1.0, 1.2)} | settings
    return future_kl_weight(logp, old_logp_t=old, advantage_t=advantage.unsqueeze(1), **settings, mask_t=mask)


@pytest.mark.parametrize("clip_range", [(1.0, 1.2), (0.8, 1.2), (0.1, 50.0)])
@pytest.mark.parametrize("half_life", [0.5, 32.0])
@pytest.mark.parametrize(("ratio_max", "safety_ratio"), [(None, 1.5), (2.0, 4.0)])
@pytest.mark.parametrize("scale", [0.05, 0.8])
def test_the_factor_is_that_of_the_slow_reference(clip_range, half_life, ratio_max, safety_ratio, scale):
    tensors = drifted(scale=scale)
    settings = {"half_life": half_life, "ratio_max": ratio_max, "safety_ratio": safety_ratio}
    expected = slow(*tensors, **settings, low=clip_range[0], high=clip_range[1])
    torch.testing.assert_close(weight(*tensors, **settings, clip_range=clip_range), expected, rtol=1e-12, atol=1e-12)
    assert expected.unique().numel() > 2  # neither all clipped nor all 1


def test_one_token_no_token_and_no_half_life():
    one = torch.ones(1, 1)
    assert weight(one * 0.1, one * 0, one[0], one).item() == pytest.approx(math.exp(0.1))
    assert weight(one[:, :0], one[:, :0], one[0], one[:, :0]).shape == (1, 0)
