"""Log importance weights W of shape (B, T), which the loss exponentiates instead of the per-token log-ratio.

Every function takes log-probabilities in nats under the current policy (`logp_t`, carries the gradient) and under the
policy that sampled the completion (`old_logp_t`, detached), and `mask_t`, 1 for loss tokens. At masked tokens W is 0 or
meaningless; the loss multiplies them by 0.
"""

import torch

from .scan import discounted_scan, reverse_discounted_scan


def sequence_log_weight(logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
    """W_t = (1/n) Σ_k (ℓ_k − ℓ°_k), n = Σ m: GSPO (arXiv 2507.18071, Eq. 7). Shapes (B, T), constant in each row."""
    mean = masked(logp_t - old_logp_t, mask_t).sum(-1, keepdim=True) / mask_t.sum(-1, keepdim=True).clamp(min=1)
    return mean.expand_as(logp_t)


def sequence_token_log_weight(logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
    """W_t = sg(W^GSPO) + ℓ_t − sg(ℓ_t): GSPO-token (arXiv 2507.18071, Eq. 14). Shapes (B, T).

    It equals GSPO in value and gradient if the advantage is uniform over the row and rows are averaged over tokens.
    Unlike GSPO it allows an advantage per token.
    """
    sequence = sequence_log_weight(logp_t.detach(), old_logp_t=old_logp_t, mask_t=mask_t)
    return sequence + masked(logp_t - logp_t.detach(), mask_t)


def eligible_log_weight(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    decay: float,
    selected_t: torch.Tensor | None = None,
    leave_own_out: bool = True,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """Eligible importance weight of S-trace, the log of the importance ratio and its gradient's traces.

    `W_t = sg(ℓ_t − ℓ°_t) + (ℓ_t − sg ℓ_t) + Σ_{k<t} g^{t−k} z_k (ℓ_k − sg ℓ_k)`

    Its value is the ordinary log-ratio, so it clips exactly where GRPO clips; only its gradient carries the trace.
    Without `selected_t` (z = 1) it is P-trace. `decay=0` or z = 0 is GRPO. With `leave_own_out=False` the selection
    includes a token's own term, Σ_{k≤t} g^{t−k} z_k (ℓ_k − sg ℓ_k); with z = 0 it has no gradient at all.

    Args:
        logp_t, old_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        decay (`float`):
            g = γλ in [0, 1], per token.
        selected_t (`torch.Tensor`, *optional*):
            z of shape (B, T), 1 for the tokens that leave a trace.
        leave_own_out (`bool`, *optional*, defaults to `True`):
            Whether a token's own gradient is exempt from the selection.
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T).

    Source: S-trace (arXiv 2605.05965), Sec. 4.
    """
    value = masked((logp_t - old_logp_t).detach(), mask_t)
    own = masked(logp_t - logp_t.detach(), mask_t)  # its value is 0; only its gradient matters
    if selected_t is None:
        return value + discounted_scan(own, decay=decay)
    left = own * selected_t.to(own.dtype)
    traced = discounted_scan(left, decay=decay)
    if not leave_own_out:
        return value + traced
    return value + own + (traced - left)


def lambda_trace_log_weight(
    logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, decay: float, style: str = "recent", mask_t: torch.Tensor
) -> torch.Tensor:
    """W_t = Σ_{k≤t} tr(t,k) (ℓ_k − ℓ°_k): the ε-trace of GRPO-λ (arXiv 2510.00194, Eq. 1 and 2). Shapes (B, T).

    `style="recent"` (Eq. 1): tr(t,k) = g^{t−k}. `style="both"` (Eq. 2): tr(t,k) = max(g^{t−k}, g^k), k counts from
    the first token of the completion. Its value is not the ordinary log-ratio, so it clips far more often than GRPO.

    The floor of Eq. 17 and 18 is left out, see `docs/theory.md`.
    """
    return traced_sum(masked(logp_t - old_logp_t, mask_t), decay=decay, style=style)


def traced_sum(x_t: torch.Tensor, *, decay: float, style: str) -> torch.Tensor:
    """Y_t = Σ_{k≤t} tr(t,k) x_k for tr of [`lambda_trace_log_weight`], in O(T). Shapes (B, T)."""
    scan = discounted_scan(x_t, decay=decay)
    if style == "recent":
        return scan
    # max(g^{t-k}, g^k) is g^k up to the middle of the prefix and g^{t-k} after it
    t = torch.arange(x_t.size(-1), device=x_t.device)
    middle = t // 2
    early = (scan.new_tensor(decay).pow(t) * x_t.to(scan.dtype)).cumsum(-1)[..., middle]
    late = scan - scan.new_tensor(decay).pow(t - middle) * scan[..., middle]
    return early + late  # the late half is empty at t = 0, where both halves would hold the same token


def traced_credit(c_t: torch.Tensor, *, decay: float, style: str) -> torch.Tensor:
    """Σ_{t≥k} tr(t,k) c_t: the transpose of [`traced_sum`], in O(T). Shapes (B, T)."""
    to_come = reverse_discounted_scan(c_t, decay=decay)
    if style == "recent":
        return to_come
    # tr(t,k) is g^{t-k} while t < 2k and g^k from there on
    k = torch.arange(c_t.size(-1), device=c_t.device)
    past_end = (0, c_t.size(-1) + 1)
    tail = torch.nn.functional.pad(to_come, past_end)[..., 2 * k]
    rest = torch.nn.functional.pad(reverse_discounted_scan(c_t, decay=1.0), past_end)[..., 2 * k]
    power = to_come.new_tensor(decay).pow(k)
    return to_come - power * tail + power * rest


def masked(x_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
    """0 where the mask is 0, whatever `x_t` holds there. Shapes (B, T)."""
    # not a product: log-probabilities of padding may be -inf or NaN, and 0 * NaN is NaN
    return x_t.masked_fill(mask_t == 0, 0.0)
