"""Which tokens have no gradient because they are clipped, and how PPO's minimum can compute GRPO-λ's."""

import math

import torch


def is_clipped(
    log_weight_t: torch.Tensor, *, advantage_t: torch.Tensor, clip_range: tuple[float, float], form: str = "surrogate"
) -> torch.Tensor:
    """True where a token has no gradient because the clipped side of the minimum is the smaller one. Shape (B, T).

    `"surrogate"`, PPO's minimum: ρ > 1 + ε_high with A > 0, or ρ < 1 − ε_low with A < 0. `"ratio"`, the minimum of
    [`clip_ratio_alone`]: ρ > 1 + ε_high, whatever the sign of A. Where A is 0 there is nothing to clip.

    Args:
        log_weight_t (`torch.Tensor`):
            W = log ρ, shape (B, T), nats; only its value is read.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1); only its sign counts.
        clip_range (`tuple[float, float]`):
            1 − ε_low and 1 + ε_high.
    """
    low, high = clip_range
    ratio_t = log_weight_t.detach().exp()
    if form == "ratio":
        return (ratio_t > high) & (advantage_t != 0)
    return torch.where(advantage_t > 0, ratio_t > high, (ratio_t < low) & (advantage_t < 0))


def clip_ratio_alone(
    log_weight: torch.Tensor, advantage_t: torch.Tensor, *, clip_range: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """W′ and A′ for which PPO's min(ρ′A′, clip(ρ′)A′) is min(ρ, clip ρ)·A, in value and gradient.

    This is Algorithm 1 of GRPO-λ (arXiv 2510.00194), for any W, ρ = exp(W). Where A ≥ 0 or ρ is within the clip range,
    the two minima agree: W′ = W, A′ = A. Elsewhere the value of ρ′ is 2 (1 + ε_high), which PPO does not clip. The
    gradient of W′ is that of W if ρ is below the range, and 0 if ρ is above it. A′ is scaled so that ρ′A′ has the value
    of Algorithm 1. `docs/theory.md` says how the two forms differ.

    Args:
        log_weight (`torch.Tensor`):
            W, shape (B, T), nats; its gradient flows.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1). A graph that scales it by a positive factor is kept.
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
