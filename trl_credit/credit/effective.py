"""How much the credit of all tokens raises one token's log-probability: the gradient that the policy receives."""

from collections.abc import Callable

import torch


def effective_credit(
    log_weight_t: torch.Tensor,
    *,
    logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    clip_range: tuple[float, float],
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_k = ∂/∂ℓ_k Σ_t M_t min(ρ_t A_t, clip(ρ_t) A_t), ρ = exp(W): −∂L/∂ℓ of the policy term, before any divisor.

    For GRPO's W at ratio 1 it is A itself; with traces it includes what later tokens pass back.

    Args:
        log_weight_t (`torch.Tensor`):
            W, shape (B, T), nats, a function of `logp_t`.
        logp_t (`torch.Tensor`):
            ℓ, shape (B, T), nats, requires a gradient.
        advantage_t (`torch.Tensor`):
            A, shape (B, T). It may have a graph: of a loss, or of a loss weight.
        clip_range (`tuple[float, float]`):
            1 − ε_low and 1 + ε_high.
        mask_t (`torch.Tensor`):
            M, shape (B, T).

    Returns:
        `torch.Tensor`: c, shape (B, T), detached.
    """
    ratio_t = log_weight_t.exp()
    surrogate_t = torch.minimum(ratio_t * advantage_t, ratio_t.clamp(*clip_range) * advantage_t)
    gain = torch.where(mask_t.bool(), surrogate_t, 0.0).sum()
    if not gain.requires_grad:
        return torch.zeros_like(logp_t)
    (found,) = torch.autograd.grad(gain, logp_t, retain_graph=True, allow_unused=True)
    return torch.zeros_like(logp_t) if found is None else found


def travelled(
    back: Callable[[torch.Tensor], torch.Tensor], coefficient_t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_{t,k} c_t ∂W_t/∂ℓ_k (t − k) and Σ_{t,k} c_t ∂W_t/∂ℓ_k, for W with ∂W/∂ℓ ≥ 0.

    Their ratio is the effective horizon: how many tokens back the credit of a token travels on average, weighted by c.
    What stays at its own token travels 0 tokens, so GRPO has 0, and P-trace with g = γλ has g/(1 − g) at the end of a
    long response. It takes O(T). It is meaningless where credit also travels forward (GSPO gives all tokens the same).

    Args:
        back (`Callable`):
            c ↦ Σ_t c_t ∂W_t/∂ℓ_k, shapes (B, T) → (B, T).
        coefficient_t (`torch.Tensor`):
            c ≥ 0, shape (B, T), |A|·M.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: two scalars; the first in tokens times the unit of c.
    """
    position = torch.arange(coefficient_t.size(-1), device=coefficient_t.device, dtype=coefficient_t.dtype)
    landed_t = back(coefficient_t)
    return (back(coefficient_t * position) - position * landed_t).sum(), landed_t.sum()
