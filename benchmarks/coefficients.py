"""How much credit reaches a token, in closed form: equations of S-trace and GRPO-λ, for figures and tests.

S-trace (arXiv 2605.05965, App. D.1, Eq. 29) writes the gradient of a response, with one advantage A for all its tokens,
as A Σ_t c_t ∇log π_t, and compares the trace coefficients c of three methods (Eq. 30a to 30c). ρ_l is the ratio that a
method clips at token l, and u_l is 0 where it is clipped. All run over loss tokens, before sums become means.
"""

import torch

from trl_credit.credit.advantages import trace_loss_weight
from trl_credit.credit.clipping import is_clipped
from trl_credit.credit.scan import discounted_scan, reverse_discounted_scan
from trl_credit.credit.weights import lambda_trace_log_weight, masked, sequence_log_weight, traced_credit


def eligible_coefficient(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantages: torch.Tensor,
    decay: float,
    selected_t: torch.Tensor | None = None,
    clip_range: tuple[float, float],
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_t = Σ_{l≥t} g^{l−t} ρ_l u_l: P-trace (Eq. 30a). With z, ρ_t u_t + z_t Σ_{l>t} g^{l−t} ρ_l u_l: S-trace.

    A clipped token keeps the credit from later tokens that are not clipped: the paper's partial trust region. S-trace
    is in its leave-own-out form (App. C.1); `decay=0` or z = 0 is GRPO's ρ_t u_t.

    Args:
        logp_t, old_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        advantages (`torch.Tensor`):
            A, shape (B,); its sign decides which tokens are clipped.
        decay (`float`):
            g = γλ in [0, 1], per token.
        selected_t (`torch.Tensor`, *optional*):
            z, shape (B, T), 1 for the tokens that leave a trace.
        clip_range (`tuple[float, float]`):
            (1 − ε_low, 1 + ε_high).
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T), without a graph, 0 at masked tokens.

    Raises:
        ValueError: `decay` is outside [0, 1].
    """
    log_weight_t = masked(logp_t - old_logp_t, mask_t)
    own_t = _passed(log_weight_t, advantages, clip_range, mask_t)
    traced_t = reverse_discounted_scan(own_t, decay=decay) * mask_t
    return traced_t if selected_t is None else own_t + selected_t * (traced_t - own_t)


def lambda_trace_coefficient(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantages: torch.Tensor,
    decay: float,
    clip_range: tuple[float, float],
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_t = Σ_{l≥t} g^{l−t} ρ^λ_l u^λ_l: the ε-trace of GRPO-λ with `recent` traces (Eq. 30b).

    ρ^λ is the ratio to the power of a trace, so u^λ is 0 far more often. Arguments, shapes and errors as in
    [`eligible_coefficient`].
    """
    tensors = {"old_logp_t": old_logp_t, "mask_t": mask_t}
    log_weight_t = lambda_trace_log_weight(logp_t, decay=decay, **tensors)
    own_t = _passed(log_weight_t, advantages, clip_range, mask_t)
    return traced_credit(own_t, decay=decay, style="recent") * mask_t


def lambda_weight_coefficient(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantages: torch.Tensor,
    decay: float,
    clip_range: tuple[float, float],
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_t = ρ_t u_t Σ_{l≥t} g^{l−t}: the ε-weight of GRPO-λ as S-trace reads it (Eq. 30c), here `trace_future`.

    A clipped token loses all of its credit. On-policy it equals the other two; the sum over l ≤ t in GRPO-λ's own text
    (`trace_past`) does not. Arguments, shapes and errors as in [`eligible_coefficient`].
    """
    own_t = _passed(masked(logp_t - old_logp_t, mask_t), advantages, clip_range, mask_t)
    return own_t * trace_loss_weight("future", decay=decay, mask_t=mask_t.to(own_t.dtype))


def sequence_coefficient(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    advantages: torch.Tensor,
    clip_range: tuple[float, float],
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c_t = (1/n) Σ_l s u = s u for n loss tokens: GSPO, equal for all of them (App. D.2, Eq. 37, times n).

    Shapes as in [`eligible_coefficient`].
    """
    log_weight_t = sequence_log_weight(logp_t, old_logp_t=old_logp_t, mask_t=mask_t)
    return _passed(log_weight_t, advantages, clip_range, mask_t)


def terminal_log_weight(
    logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, decay: float | None = None, mask_t: torch.Tensor
) -> torch.Tensor:
    """Σ_k w_k (ℓ_k − ℓ°_k), the weight of a response's last loss token T, with w_k = g^{T−k} or w_k = 1/n.

    S-trace's App. D.2: with g it is GRPO-λ's ε-trace at T (Eq. 33); with 1/n it is GSPO's weight (Eq. 35), so GSPO is a
    trace that does not decay. Its exp times A has the gradient ρ A w_k at token k (Eq. 33 and 37).

    Args:
        logp_t, old_logp_t, mask_t (`torch.Tensor`):
            Shape (B, T), log-probabilities in nats.
        decay (`float`, *optional*):
            g in [0, 1], per token; `None` for 1/n.

    Returns:
        `torch.Tensor`: shape (B,), differentiable in `logp_t`; 0 in a row without loss tokens.
    """
    m_t = mask_t.to(logp_t.dtype)
    if decay is None:
        weight_t = m_t / m_t.sum(-1, keepdim=True).clamp(min=1)
    else:
        t = torch.arange(m_t.size(-1), device=m_t.device)
        distance = (t * mask_t.bool()).amax(-1, keepdim=True) - t
        weight_t = m_t.new_tensor(decay).pow(distance.clamp(min=0)) * m_t
    return (weight_t * masked(logp_t - old_logp_t, mask_t)).sum(-1)


def generalized_advantage(td_error_t: torch.Tensor, *, decay: float) -> torch.Tensor:
    """A_t = Σ_{l≥t} g^{l−t} δ_l with g = γλ: GAE of responses that end at T. Shapes (..., T); δ is 0 at padding.

    Raises:
        ValueError: `decay` is outside [0, 1].
    """
    return reverse_discounted_scan(td_error_t, decay=decay)


def eligibility_traces(score_t: torch.Tensor, *, ratio_t: torch.Tensor | None = None, decay: float) -> torch.Tensor:
    """e_t = g e_{t−1} + ρ_t ∇log π_t, e_{−1} = 0: the traces with which Σ_t ρ_t A_t ∇log π_t = Σ_t δ_t e_t.

    A is [`generalized_advantage`] of δ. S-trace's Proposition 4.1 (Eq. 5 and 6); with ρ = 1 it is GRPO-λ's Theorem 1
    (arXiv 2510.00194, Eq. 13 to 16). Both are identities for the δ of any critic, without clipping. The methods
    then replace δ by the response's A, which is no identity.

    Args:
        score_t (`torch.Tensor`):
            ∇log π_t of each token, shape (..., T, P) for P parameters.
        ratio_t (`torch.Tensor`, *optional*):
            ρ, shape (..., T); on-policy without it.
        decay (`float`):
            g = γλ in [0, 1].

    Returns:
        `torch.Tensor`: e, the shape of `score_t`.

    Raises:
        ValueError: `decay` is outside [0, 1].
    """
    weighted = score_t if ratio_t is None else ratio_t.unsqueeze(-1) * score_t
    return discounted_scan(weighted.transpose(-1, -2), decay=decay).transpose(-1, -2)


def _passed(
    log_weight_t: torch.Tensor, advantages: torch.Tensor, clip_range: tuple[float, float], mask_t: torch.Tensor
) -> torch.Tensor:
    """ρ u at loss tokens, 0 at others."""
    clipped = is_clipped(log_weight_t, advantage_t=advantages.unsqueeze(1), clip_range=clip_range)
    passes = mask_t.bool() & ~clipped
    return torch.where(passes, log_weight_t.detach().exp(), 0.0)
