"""Credit from a teacher: from how much more probable it finds each token than the policy does."""

import math

import torch


def teacher_gap(teacher_logp_t: torch.Tensor, *, logp_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
    """d_t = sg(ℓᵀ_t − ℓ_t), nats, shape (B, T), at least float32; NaN where the teacher has no context, 0 at masked
    tokens.

    Σ_t d_t over a response is an estimate of minus the KL divergence of the policy from the teacher.

    Args:
        teacher_logp_t (`torch.Tensor`):
            Log-probabilities of the response under the teacher, shape (B, T); NaN where unknown.
        logp_t (`torch.Tensor`):
            The same under the policy.
        mask_t (`torch.Tensor`):
            1 for loss tokens.
    """
    dtype = torch.promote_types(logp_t.dtype, torch.float32)
    return torch.where(mask_t.bool(), teacher_logp_t.detach().to(dtype) - logp_t.detach().to(dtype), 0.0)


def position_weight(gap_t: torch.Tensor, *, gamma: float, mask_t: torch.Tensor) -> torch.Tensor:
    """w_t = 1 + γ·(1 − Σ_{k<t} |d_k| / Σ_k |d_k|): early tokens weigh more (IW-OPD, arXiv 2606.22600).

    w falls from 1 + γ at the first token to 1. Rows in which d is 0 everywhere have w = 1 + γ. Shapes (B, T).
    """
    size_t = torch.where(mask_t.bool(), gap_t.abs(), 0.0)
    total = size_t.sum(-1, keepdim=True)
    return 1 + gamma * (1 - (size_t.cumsum(-1) - size_t) / total.clamp(min=torch.finfo(total.dtype).tiny))


def evidence_factor(gap_t: torch.Tensor, *, advantage_t: torch.Tensor, share: float, clip: float) -> torch.Tensor:
    """f_t = (1 − μ) + μ·clip(exp(sgn(A)·d_t), 1 − ε, 1 + ε): RLSD's factor on the advantage (arXiv 2604.03128).

    With a positive advantage, tokens that the teacher finds more probable than the policy weigh more; with a negative
    one those that it finds less probable. f is positive, so the sign of A stays; μ = 0 gives exactly 1.

    Args:
        gap_t (`torch.Tensor`):
            d, shape (B, T), nats; f is 1 where it is NaN.
        advantage_t (`torch.Tensor`):
            A, shape (B, 1) or (B, T).
        share (`float`):
            μ in [0, 1].
        clip (`float`):
            ε in [0, 1).

    Returns:
        `torch.Tensor`: f, shape (B, T), in [1 − με, 1 + με].
    """
    # the logarithm is clipped, since the exponential of a large gap overflows
    log_factor_t = (torch.sign(advantage_t) * gap_t).clamp(math.log(1 - clip), math.log(1 + clip))
    return torch.where(gap_t.isnan(), 1.0, (1 - share) + share * log_factor_t.exp())
