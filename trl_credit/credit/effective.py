"""How much the credit of all tokens raises one token's log-probability: the gradient that the policy receives."""

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
    log_weight_t: torch.Tensor, *, logp_t: torch.Tensor, coefficient_t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_{t,k} c_t |∂W_t/∂ℓ_k| (t − k) and Σ_{t,k} c_t |∂W_t/∂ℓ_k|, for W with ∂W/∂ℓ ≥ 0.

    Their ratio is how many tokens back credit travels on average: 0 for GRPO. It takes O(T), by two products with the
    transposed Jacobian. It is meaningless where credit also travels forward (GSPO gives all tokens the same).

    Args:
        log_weight_t, logp_t (`torch.Tensor`):
            As for [`effective_credit`].
        coefficient_t (`torch.Tensor`):
            c ≥ 0, shape (B, T), such as |A|·M.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: two scalars.
    """
    position = torch.arange(logp_t.size(-1), device=logp_t.device, dtype=logp_t.dtype)
    if not log_weight_t.requires_grad:
        return logp_t.new_zeros(()), logp_t.new_zeros(())

    def back(c_t: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(log_weight_t, logp_t, c_t, retain_graph=True)[0]

    landed_t = back(coefficient_t)
    return (back(coefficient_t * position) - position * landed_t).sum(), landed_t.sum()
