"""Which tokens Clip-Cov and KL-Cov choose by the covariance of advantage and log-probability."""

import torch


def clip_cov_tokens(
    logp_t: torch.Tensor,
    *,
    advantage_t: torch.Tensor,
    share: float,
    cov_range: tuple[float, float],
    clipped_t: torch.Tensor | None = None,
    generator: torch.Generator,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_t = (A_t − mean A)(ℓ_t − mean ℓ); chosen: max(1, ⌊s·N⌋) of the tokens with low < c_t < high, at random.

    The means run over the N tokens of the mask. If there are fewer candidates, all are chosen; with s = 0 none. One
    random number is drawn for each token of the mask, row by row, so that padding does not matter.

    Args:
        logp_t (`torch.Tensor`):
            ℓ, shape (B, T), nats; only its value is read.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1).
        share (`float`):
            s in [0, 1].
        cov_range (`tuple[float, float]`):
            Low and high, nats times the unit of A.
        clipped_t (`torch.Tensor`, *optional*):
            True for tokens that are no candidates, since PPO clips them anyway, shape (B, T). `None`: no token.
        generator (`torch.Generator`):
            Draws the random numbers.
        mask_t (`torch.Tensor`):
            Shape (B, T). Elsewhere the other tensors may not be finite.

    Returns:
        `torch.Tensor`: 1 for the chosen tokens, else 0, floating, shape (B, T).

    Source: Clip-Cov (arXiv 2505.22617).
    """
    inside, cov = mask_t.bool(), _covariances(logp_t, advantage_t, mask_t)
    low, high = cov_range
    candidates = (cov > low) & (cov < high)
    if clipped_t is not None:
        candidates &= ~clipped_t[inside]
    draws = torch.rand(len(cov), generator=generator, device=generator.device).to(cov.device)
    count = min(_count(share, len(cov)), int(candidates.sum()))
    chosen = draws.masked_fill(~candidates, 2.0).argsort(stable=True)[:count]
    return _marked(chosen, inside, cov.dtype)


def kl_cov_tokens(
    logp_t: torch.Tensor, *, advantage_t: torch.Tensor, share: float, mask_t: torch.Tensor
) -> torch.Tensor:
    """c_t = (A_t − mean A)(ℓ_t − mean ℓ); chosen: the max(1, ⌊s·N⌋) tokens of largest c_t. Ties keep the earlier one.

    The means run over the N tokens of the mask. A token is earlier if its row is, or its place in the same row. With
    s = 0 none is chosen.

    Args:
        logp_t (`torch.Tensor`):
            ℓ, shape (B, T), nats; only its value is read.
        advantage_t (`torch.Tensor`):
            A, shape (B, T) or (B, 1).
        share (`float`):
            s in [0, 1].
        mask_t (`torch.Tensor`):
            Shape (B, T). Elsewhere the other tensors may not be finite.

    Returns:
        `torch.Tensor`: 1 for the chosen tokens, else 0, floating, shape (B, T).

    Source: KL-Cov (arXiv 2505.22617).
    """
    cov = _covariances(logp_t, advantage_t, mask_t)
    order = cov.argsort(descending=True, stable=True)
    return _marked(order[: _count(share, len(cov))], mask_t.bool(), cov.dtype)


def _covariances(logp_t: torch.Tensor, advantage_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
    """c of the N tokens of the mask, row by row, shape (N,): without padding, whose width would change the rounding."""
    inside = mask_t.bool()
    kind = torch.promote_types(logp_t.dtype, torch.float32)
    logp, advantage = (x.detach().expand_as(logp_t)[inside].to(kind) for x in (logp_t, advantage_t))
    return (advantage - advantage.mean()) * (logp - logp.mean())


def _count(share: float, tokens: int) -> int:
    # 0.29 * 100 is 28.999999999999996 in binary: without the slack its floor would be 28
    return min(tokens, max(int(share > 0.0), int(share * tokens + 1e-9)))


def _marked(chosen: torch.Tensor, inside: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1 at the tokens with these numbers among those inside."""
    marks = torch.zeros(int(inside.sum()), dtype=dtype, device=inside.device)
    marks[chosen] = 1.0
    return torch.zeros(inside.shape, dtype=dtype, device=inside.device).masked_scatter(inside, marks)
