"""Which tokens leave a trace (z of S-trace) and which ones the policy gradient keeps (M), both of shape (B, T)."""

import torch


def entropy_order(entropy_t: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """The tokens of each row from the highest entropy to the lowest, int64, shape (B, T). Tokens outside of the loss
    come last; of equal entropies the earlier token comes first."""
    ranked = torch.where(mask_t == 0, -torch.inf, entropy_t.detach())
    return torch.argsort(ranked, dim=-1, descending=True, stable=True)


def select_high_entropy(
    entropy_t: torch.Tensor, *, rate: float, mask_t: torch.Tensor, order: torch.Tensor | None = None
) -> torch.Tensor:
    """z_k = 1 for the ⌈ρ·n⌉ tokens of highest entropy among the n loss tokens of each row; ties keep the earlier one.

    The quantile is per row, so no process needs another's tokens (S-trace, arXiv 2605.05965, Sec. 4.3). The trainer
    passes the entropies of the current policy, recomputed in every update.

    Args:
        entropy_t (`torch.Tensor`):
            Entropy of the next-token distribution, nats, shape (B, T). Values at masked positions are ignored.
        rate (`float`):
            ρ in [0, 1].
        mask_t (`torch.Tensor`):
            Shape (B, T).
        order (`torch.Tensor`, *optional*):
            [`entropy_order`] of these entropies, if it is known.

    Returns:
        `torch.Tensor`: zeros and ones, floating, shape (B, T).
    """
    # 0.2 * 5 is 1.0000000000000002 in binary: without the slack its ceiling would be 2. MPS has no float64.
    dtype, slack = (torch.float32, 1e-4) if entropy_t.device.type == "mps" else (torch.float64, 1e-9)
    keep = torch.ceil(mask_t.sum(-1, keepdim=True, dtype=dtype) * rate - slack)
    order = entropy_order(entropy_t, mask_t=mask_t) if order is None else order
    first = torch.arange(order.size(-1), device=order.device) < keep
    kind = entropy_t.dtype if entropy_t.is_floating_point() else torch.float32
    return torch.empty_like(order, dtype=kind).scatter_(-1, order, first.to(kind))  # `order` has every place


def select_random(rate: float, *, generator: torch.Generator, mask_t: torch.Tensor) -> torch.Tensor:
    """z_k ~ Bernoulli(ρ), independent for each loss token: the ablation of S-trace's Table 5 (same expected size).

    Shapes (B, T). One random number is drawn for each token of the mask, row by row, so that padding does not matter.
    """
    inside = mask_t.bool()
    draws = torch.rand(int(inside.sum()), generator=generator, device=generator.device).to(mask_t.device)
    return torch.zeros(mask_t.shape, device=mask_t.device).masked_scatter(inside, (draws < rate).float())


def probability_mask(old_logp_t: torch.Tensor, *, threshold: float, mask_t: torch.Tensor) -> torch.Tensor:
    """M_t = 1[exp(ℓ°_t) < ρ]: keeps the tokens that the sampling policy was not already sure of (SPO, 2505.23564).

    Because it reads the policy that sampled, the mask is the same in every iteration over the batch. Log-probabilities
    are at sampling temperature, without top-p.

    Args:
        old_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        threshold (`float`):
            ρ > 0. Above 1 the mask keeps every loss token.
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: zeros and ones of the dtype of `mask_t`, shape (B, T), never outside `mask_t`.
    """
    return ((old_logp_t.detach().exp() < threshold) & mask_t.bool()).to(mask_t.dtype)
