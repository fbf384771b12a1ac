"""FIPO's factor on the advantage: how much more probable the policy has made the rest of a response."""

import math

import torch

from .scan import reverse_discounted_scan


UNSAFE_RATIO = 4.0  # above it, a token with a negative advantage gets no factor above 1
SAFE_RANGE = (0.8, 1.0)


def future_kl_weight(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    half_life: float,
    clip_range: tuple[float, float],
    ratio_max: float | None = None,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """`f_t = clip(exp F_t, low, high)`, `F_t = M_t Δ_t + γ F_{t+1}`, `Δ_t = ℓ_t − ℓ°_t`, `γ = 2^(−1/h)`.

    F_t is the discounted log-ratio of the response from token t on, t included. M_t is 0 outside of the mask and, with
    `ratio_max`, where exp(Δ_t) exceeds it. Where A_t < 0 and exp(Δ_t) > 4, f_t is then clamped to [0.8, 1]: the loss is
    not bounded there, and f would add to it. Without drift (Δ = 0), f is exactly 1 if the range holds 1.

    Args:
        logp_t, old_logp_t (`torch.Tensor`):
            ℓ and ℓ°, shape (B, T), nats; only their values are read.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1); only its sign counts.
        half_life (`float`):
            h > 0, tokens.
        clip_range (`tuple[float, float]`):
            Smallest and largest f.
        ratio_max (`float`, *optional*):
            δ > 0. `None`: every token of the mask counts.
        mask_t (`torch.Tensor`):
            Shape (B, T). Elsewhere the other tensors may not be finite.

    Returns:
        `torch.Tensor`: shape (B, T), floating, detached; 1 outside of the mask.

    Source: FIPO (arXiv 2603.19835).
    """
    inside = mask_t.bool()
    drift_t = torch.where(inside, logp_t.detach() - old_logp_t, 0.0)
    counted_t = drift_t if ratio_max is None else drift_t.masked_fill(drift_t > math.log(ratio_max), 0.0)
    future_t = reverse_discounted_scan(counted_t, decay=2.0 ** (-1.0 / half_life))
    factor_t = future_t.exp().clamp(*clip_range)
    unsafe_t = (advantage_t < 0) & (drift_t > math.log(UNSAFE_RATIO))
    factor_t = torch.where(unsafe_t, factor_t.clamp(*SAFE_RANGE), factor_t)
    return torch.where(inside, factor_t, 1.0)
