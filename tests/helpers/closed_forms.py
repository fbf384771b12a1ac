"""Closed forms and slow references for traces and for the credit that autograd computes."""

import torch

from trl_credit.credit.advantages import confidence_weight
from trl_credit.credit.scan import reverse_discounted_scan
from trl_credit.credit.weights import masked


def eligible_gradient(c_t, *, decay, selected_t=None, leave_own_out=True, mask_t):
    """c_k + z_k Σ_{t>k} g^{t−k} c_t."""
    own = masked(c_t, mask_t)
    traced = masked(reverse_discounted_scan(own, decay=decay), mask_t)
    if selected_t is None:
        return traced
    return own + selected_t * (traced - own) if leave_own_out else selected_t * traced


def confidence_slope(logp_t, *, kind, mask_t):
    """f′(ℓ_t) / f(ℓ_t) of the ε-weight; 0 if it is detached."""
    logp_t = logp_t.detach().requires_grad_()
    log_t = confidence_weight(logp_t, kind=kind, mask_t=mask_t).log()
    return torch.autograd.grad(log_t.sum(), logp_t)[0] if log_t.requires_grad else torch.zeros_like(logp_t)


def trace_matrix(length, decay, style):
    """tr(t, k) of GRPO-λ's trace styles, shape (length, length)."""

    def entry(t, k):
        if k > t:
            return 0.0
        recent = decay ** (t - k)
        return recent if style == "recent" else max(recent, decay**k)

    return torch.tensor([[entry(t, k) for k in range(length)] for t in range(length)], dtype=torch.float64)
