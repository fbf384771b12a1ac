"""A toy batch for the losses of other engines, and S-trace on it from its definition, in O(T²)."""

import math
from types import SimpleNamespace

import torch


def toy_batch() -> SimpleNamespace:
    """Responses of 9, 5, 7 and 1 tokens, two of them with two tokens of a tool inside, float64.

    `drift_t` is ℓ − ℓ°, and some of its ratios are clipped. `sampler_weight_t` is the probability under π_old over that
    of the sampler, at most 2.
    """
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 4, 9, generator=draw, dtype=torch.float64)
    mask_t = torch.arange(9) < torch.tensor([[9], [5], [7], [1]])
    mask_t[:2, 2:4] = False
    advantage_t = torch.tensor([[1.0], [-0.7], [0.4], [2.0]], dtype=torch.float64).expand(4, 9)
    sampler_t = 0.6 * noise[1]
    weight_t = sampler_t.exp().clamp(max=2.0)
    return SimpleNamespace(
        mask_t=mask_t, advantage_t=advantage_t, drift_t=0.3 * noise[0], sampler_t=sampler_t, sampler_weight_t=weight_t
    )


def slow_gains(logp_t, *, uncertainty_t, decay, rate, batch):
    """min(e^W A, clip(e^W) A) with ε = 0.2, shape (B, T), 0 outside of the mask; the most uncertain leave a trace."""
    gain_t = torch.zeros_like(logp_t)
    for b, row in enumerate(batch.mask_t):
        inside = row.nonzero().flatten().tolist()
        left = sorted(inside, key=lambda t, b=b: -uncertainty_t[b, t].item())[: math.ceil(rate * len(inside) - 1e-9)]
        for t in inside:
            traces = [decay ** (t - k) * (logp_t[b, k] - logp_t[b, k].detach()) for k in left if k < t]
            own = batch.drift_t[b, t] + logp_t[b, t] - logp_t[b, t].detach()
            ratio, advantage = (own + sum(traces)).exp(), batch.advantage_t[b, t]
            gain_t[b, t] = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return gain_t


def assert_same(loss, other, *inputs, **tolerance):
    """The same loss, and the same gradient: each with respect to its own input."""
    torch.testing.assert_close(loss, other, **tolerance)
    gradients = [torch.autograd.grad(x, y, retain_graph=True)[0] for x, y in zip((loss, other), inputs, strict=True)]
    torch.testing.assert_close(*gradients, **tolerance)
