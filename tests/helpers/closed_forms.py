"""Σ_t c_t ∂W_t/∂ℓ_k of every W of the knobs in closed form: references for the credit that autograd computes.

All map (B, T) to (B, T), with 0 at masked tokens.
"""

import torch

from trl_credit.credit.advantages import confidence_weight
from trl_credit.credit.scan import reverse_discounted_scan
from trl_credit.credit.turns import TurnTable
from trl_credit.credit.weights import masked, traced_credit


def eligible_gradient(c_t, *, decay, selected_t=None, leave_own_out=True, mask_t):
    """c_k + z_k Σ_{t>k} g^{t−k} c_t."""
    own = masked(c_t, mask_t)
    traced = masked(reverse_discounted_scan(own, decay=decay), mask_t)
    if selected_t is None:
        return traced
    return own + selected_t * (traced - own) if leave_own_out else selected_t * traced


def turn_gradient(c_t, *, turn_ids, mask_t):
    """C_τ(k) / n_τ(k), C_σ = Σ_{t∈σ} c_t."""
    turns = TurnTable(turn_ids, mask_t)
    return turns.by_token(turns.mean(c_t))


def eligible_turn_gradient(c_t, *, decay, selected_t=None, leave_own_out=True, turn_ids, mask_t):
    """c_k + (z_τ/n_τ) Σ_{σ>τ} g^{σ−τ} C_σ."""
    turns = TurnTable(turn_ids, mask_t)
    own, totals = masked(c_t, mask_t), turns.sum(c_t)
    traced = (reverse_discounted_scan(totals, decay=decay) - totals) / turns.count.clamp(min=1)
    z_t = torch.ones_like(own) if selected_t is None else selected_t
    return own * (1 if leave_own_out else z_t) + z_t * turns.by_token(traced)


def lambda_trace_turn_gradient(c_t, *, decay, style="recent", turn_ids, mask_t):
    """c_k + (1/n_τ) Σ_{σ>τ} tr(σ,τ) C_σ."""
    turns = TurnTable(turn_ids, mask_t)
    totals = turns.sum(c_t)
    traced = (traced_credit(totals, decay=decay, style=style) - totals) / turns.count.clamp(min=1)
    return masked(c_t, mask_t) + turns.by_token(traced)


def log_probability_gradient(config, c_t, *, selected_t, turn_ids, mask_t):
    """That of the W of `config`, whose `importance` is not "sequence"."""
    by_turn, trace = {"turn_ids": turn_ids, "mask_t": mask_t}, {"decay": config.trace_decay}
    of_turns = by_turn if config.trace_unit == "turn" else {"mask_t": mask_t}
    if config.importance == "turn":
        return turn_gradient(c_t, **by_turn)
    if config.importance == "lambda_trace":
        trace["style"] = config.trace_style
        if config.trace_unit == "turn":
            return lambda_trace_turn_gradient(c_t, **trace, **by_turn)
        return traced_credit(c_t, **trace) * mask_t
    if config.importance == "eligible":
        trace |= {"selected_t": None if config.selector == "none" else selected_t}
        gradient = eligible_turn_gradient if config.trace_unit == "turn" else eligible_gradient
        return gradient(c_t, **trace, leave_own_out=config.leave_own_out, **of_turns)
    return c_t  # no trace


def confidence_slope(logp_t, *, kind, mask_t):
    """f′(ℓ_t) / f(ℓ_t) of the ε-weight; 0 if it is detached."""
    logp_t = logp_t.detach().requires_grad_()
    log_t = confidence_weight(logp_t, kind=kind, mask_t=mask_t).log()
    return torch.autograd.grad(log_t.sum(), logp_t)[0] if log_t.requires_grad else torch.zeros_like(logp_t)
