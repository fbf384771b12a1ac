"""Which share of a sum over tokens lies where: gradient noise outside of a selection, credit at the end of a response.

Each function returns a numerator and a denominator, so that micro-batches and processes add up before the division.
"""

import torch


LAST_TOKENS = 20


def noise_outside(
    old_logp_t: torch.Tensor, *, selected_t: torch.Tensor, mask_t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ (1 − π(y_t)) over the tokens outside of a selection, and over all tokens.

    The score of a token, the gradient of its log-probability by the logits, has E|score|² = 1 − Σ_a p_a². A token
    sampled from p has Σ_a p_a (1 − p_a) = 1 − Σ_a p_a² as expectation of 1 − p, so the sampled tokens suffice, and no
    logits are needed. Tokens count alike, whatever their advantages. The measure is ours.

    Args:
        old_logp_t (`torch.Tensor`):
            Log-probabilities of the sampled tokens under the policy that sampled, nats, shape (B, T). The expectation
            holds for the distribution that was sampled from, so they are at the sampling temperature.
        selected_t (`torch.Tensor`):
            1 for the tokens of the selection, shape (B, T).
        mask_t (`torch.Tensor`):
            1 for the tokens that count, shape (B, T). Elsewhere the other tensors may not be finite.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: two scalars.
    """
    noise_t = torch.where(mask_t.bool(), -torch.expm1(old_logp_t.detach()), 0.0)  # expm1: exact for sure tokens
    return noise_t.masked_fill(selected_t.bool(), 0.0).sum(), noise_t.sum()


def last_tokens(credit_t: torch.Tensor, *, mask_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_r Σ |c| on the last m = min(n, 20) of the n tokens of response r, and Σ_r (m / n) Σ |c| on all of them.

    The ratio is 1 if credit is uniform within each response: the share of credit at the end against the share of
    tokens there, over responses in proportion to their credit. Responses without credit do not count. The measure is
    ours.

    Args:
        credit_t (`torch.Tensor`):
            Credit of each token, of any sign and unit, shape (B, T).
        mask_t (`torch.Tensor`):
            1 for the tokens that the policy wrote, shape (B, T).

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: two scalars.
    """
    inside = mask_t.bool()
    size_t = torch.where(inside, credit_t.detach().abs(), 0.0)
    n = inside.sum(-1, keepdim=True).to(size_t.dtype)
    at_end = inside & (inside.cumsum(-1) > n - LAST_TOKENS)
    uniform = n.clamp(max=LAST_TOKENS) / n.clamp(min=1)
    return torch.where(at_end, size_t, 0.0).sum(), (uniform * size_t).sum()
