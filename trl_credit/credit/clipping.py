"""Which tokens a minimum of clipped ratios leaves without a gradient, and another minimum than PPO's put into PPO's."""

import math

import torch


def is_clipped(
    log_weight_t: torch.Tensor, *, advantage_t: torch.Tensor, clip_range: tuple[float, float], form: str = "surrogate"
) -> torch.Tensor:
    """Where a token has no gradient of its own, since the clipped side is the smaller one. Bool, shape (B, T).

    `"surrogate"`, PPO's minimum: ρ > 1 + ε_high with A > 0, or ρ < 1 − ε_low with A < 0. `"ratio"`, that of
    [`clip_ratio_alone`]: ρ > 1 + ε_high, whatever the sign of A. Where A is 0 there is nothing to clip.

    Args:
        log_weight_t (`torch.Tensor`):
            W = log ρ, shape (B, T), nats; its value alone is read.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1), of which the sign counts.
        clip_range (`tuple[float, float]`):
            1 − ε_low and 1 + ε_high.
    """
    low, high = clip_range
    ratio_t = log_weight_t.detach().exp()
    if form == "ratio":
        return (ratio_t > high) & (advantage_t != 0)
    return ((ratio_t > high) & (advantage_t > 0)) | ((ratio_t < low) & (advantage_t < 0))


def clip_ratio_alone(
    log_weight: torch.Tensor, advantage_t: torch.Tensor, *, clip_range: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """W′ and A′ for which PPO's min(ρ′A′, clip(ρ′)A′) is min(ρ, clip ρ)·A, in value and gradient.

    Algorithm 1 of GRPO-λ (arXiv 2510.00194) as it is written, for any W, ρ = exp(W). For A ≥ 0, and for A < 0 within
    the clip range, the two are the same and W′ = W, A′ = A. For A < 0 outside of it PPO takes max(ρ, clip ρ)·A, which
    has no bound above and no gradient below; this is bounded above, without gradient there, and below it is ρA with its
    gradient. (min(ρ, clip ρ) is min(ρ, 1 + ε_high): ε_low has no effect.) There ρ′ is a constant that PPO leaves alone
    where A < 0, with the gradient of W or none, and A′ has the rest of the value.

    Args:
        log_weight (`torch.Tensor`):
            W, shape (B, T), nats; its gradient flows.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1), detached.
        clip_range (`tuple[float, float]`):
            1 − ε_low and 1 + ε_high.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: W′ and A′, shape (B, T).
    """
    low, high = clip_range
    log_weight = log_weight.to(torch.promote_types(log_weight.dtype, torch.float32))
    value = log_weight.detach()
    ratio = value.exp()
    above = ratio > high
    replaced = (advantage_t < 0) & (above | (ratio < low))
    unclipped = 2 * high  # far enough from the range for any rounding
    moved = torch.where(above, 0.0, log_weight - value) + math.log(unclipped)
    bounded = advantage_t * ratio.clamp(max=high) / unclipped
    return torch.where(replaced, moved, log_weight), torch.where(replaced, bounded, advantage_t)
