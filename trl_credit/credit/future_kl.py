"""FIPO's factor on the advantage: how much more probable the policy has made the rest of a response."""

import math

import torch

from .scan import reverse_discounted_scan


SAFE_RANGE = (0.8, 1.0)


def future_kl_weight(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    half_life: float,
    clip_range: tuple[float, float],
    ratio_max: float | None = None,
    safety_ratio: float = 10.0,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """`f_t = clip(exp F_t, low, high)`, `F_t = M_t Δ_t + γ F_{t+1}`, `Δ_t = ℓ_t − ℓ°_t`, `γ = 2^(−1/h)`.

    F_t is the discounted log-ratio of the response from token t on, t included. M_t is 0 outside of the mask and, with
    `ratio_max`, where exp(Δ_t) exceeds it. Where A_t < 0 and exp(Δ_t) exceeds `safety_ratio`, f_t is then clamped to
    [0.8, 1]: the ratio is large there already, and f would add to it. Without drift (Δ = 0), f is 1 if the range holds
    1.

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
            c > 0. `None`: every token of the mask counts.
        safety_ratio (`float`, *optional*, defaults to `10.0`):
            Ratio above which a token with a negative advantage gets no factor above 1 (App. B: 10 for 32B, 3 for 7B).
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
    unsafe_t = (advantage_t < 0) & (drift_t > math.log(safety_ratio))
    factor_t = torch.where(unsafe_t, factor_t.clamp(*SAFE_RANGE), factor_t)
    return torch.where(inside, factor_t, 1.0)


def few_dual_clipped(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    ratio_max: float,
    limit: int,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """1 in the rows with fewer than `limit` tokens of A_t < 0 and exp(ℓ_t − ℓ°_t) > `ratio_max`, else 0. Shape (B, T).

    The dual clip bounds the loss of such a token. FIPO's released code drops a response with two of them; its text does
    not. Arguments as in [`future_kl_weight`].
    """
    clipped_t = (advantage_t < 0) & (logp_t.detach() - old_logp_t > math.log(ratio_max)) & mask_t.bool()
    return (clipped_t.sum(-1, keepdim=True) < limit).to(logp_t.dtype).expand_as(logp_t)
