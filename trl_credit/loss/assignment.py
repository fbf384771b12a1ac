"""The built-in credit functions: from knobs and log-probabilities to the three tensors (W, A, M)."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..credit import selection, turns, weights
from ..credit.advantages import confidence_weight, optimal_advantage, trace_loss_weight
from ..credit.clipping import clip_ratio_alone
from ..credit.segments import policy_iteration_loss, segment_ends
from ..credit.tokens import Credit, Tokens


if TYPE_CHECKING:  # so that assigning credit needs only torch
    from ..config import CreditConfig


class CreditFunction(Protocol):
    """An algorithm: `f(config, tokens) -> Credit`. Optional attributes of the function declare what it does:

    * `carries_loss = True`: A is minus a custom loss and may have a graph; W is then `None` or 0.
    * `replaces_kl = True`: that loss contains β, and TRL's KL term is left out.
    * `replaces_correction = True`: the function weighs by `sampling_logp_t` itself, and TRL's correction for the
      sampling engine is left out.
    * `needs_drift = True`: the function changes nothing while the policy is still the one that sampled. A run with one
      update per generation batch says so once.
    * `by_row = condition`: the credit of a row does not depend on the other rows of its micro-batch, in configurations
      for which the condition holds (`{}`: always). Then `length_sort` may sort the rows.
    * `batch_statistics = g`: `g(config, batch) -> (N, T)`, called once per generation batch with a
      [`~trl_credit.credit.tokens.BatchTokens`]. The function gets its result as `tokens.statistics_t`, so how the batch
      is cut into micro-batches does not matter. An attribute `g.acts`, a condition on a configuration
      ([`~trl_credit.config.knobs.when`]), says when it is called.
    """

    def __call__(self, config: "CreditConfig", tokens: Tokens) -> Credit: ...


def wide(x: torch.Tensor) -> torch.Tensor:
    """(B,) as (B, 1); (B, T) unchanged."""
    return x.unsqueeze(1) if x.dim() == 1 else x


def known_or(x: torch.Tensor | None, default: torch.Tensor | None) -> torch.Tensor | None:
    """`x`, with `default` where it is NaN. Either may be `None`."""
    if x is None or default is None:
        return default if x is None else x
    return torch.where(x.isnan(), default, x)


def assign_credit(config: "CreditConfig", tokens: Tokens) -> Credit:
    """Credit by the knobs of `config`: importance, trace, selector and loss weight.

    Args:
        config ([`CreditConfig`]):
            Read only.
        tokens ([`Tokens`]):
            One micro-batch.

    Returns:
        [`Credit`]: its M is `tokens.policy_mask_t`, from the knobs.

    Raises:
        ValueError: a custom selector did not return a mask of shape (B, T).
    """
    advantage = wide(tokens.advantages)
    if config.loss_weight != "none":
        advantage = advantage * trace_loss_weight(
            config.loss_weight.removeprefix("trace_"),
            decay=config.trace_decay,
            style=config.trace_style,
            mask_t=tokens.mask_t.to(advantage.dtype),
        )
        if (kind := config.loss_weight_confidence) != "none":
            weight_t = confidence_weight(tokens.logp_t, kind=kind, mask_t=tokens.mask_t)
            advantage = advantage * weight_t.to(advantage.dtype)
    selected = _selected(config, tokens)
    log_weight = _log_weight(config, tokens, selected)
    return Credit(log_weight, advantage, selected=selected, traced=log_weight)


def policy_iteration(config: "CreditConfig", tokens: Tokens) -> Credit:
    """The loss of policy iteration as credit: W = 0, so that exp(W)·A = A, and A = −loss, which carries the gradient.

    The loss of a segment stands at its last token, and the mean runs over segments. Its importance weight is π over
    the engine's probability where that is known, else over π_old (SPO, arXiv 2505.23564, App. B). See
    [`~trl_credit.credit.segments.policy_iteration_loss`].
    """
    loss_t = policy_iteration_loss(
        tokens.logp_t,
        old_logp_t=known_or(tokens.sampling_logp_t, tokens.old_logp_t),
        ref_logp_t=tokens.ref_logp_t,
        advantage_t=wide(tokens.advantages).expand_as(tokens.logp_t),
        segment_ids=tokens.segment_ids,
        beta=config.beta,
        mask_t=tokens.mask_t,
    )[0]
    if config.uses_released_code("spo_policy_iteration"):
        loss_t = 0.5 * loss_t
    return Credit(torch.zeros_like(tokens.logp_t), -loss_t)


policy_iteration.carries_loss = True
policy_iteration.replaces_kl = True
policy_iteration.replaces_correction = True

_CREDIT = {"clip": assign_credit, "policy_iteration": policy_iteration}


def with_ratio_clipped(credit: Credit, tokens: Tokens, *, clip_range: tuple[float, float]) -> Credit:
    """Credit that makes TRL's loss min(ρ, clip ρ)·A, see [`~trl_credit.credit.clipping.clip_ratio_alone`]."""
    log_weight = tokens.logp_t - tokens.old_logp_t if credit.log_weight is None else credit.log_weight
    log_weight, advantage = clip_ratio_alone(log_weight, wide(credit.advantage), clip_range=clip_range)
    return replace(credit, log_weight=log_weight, advantage=advantage)


def credit_function(config: "CreditConfig") -> CreditFunction:
    """The credit function of a run: a custom one, or the built-in one that the knobs choose."""
    return config.custom_function("credit") or _CREDIT[config.policy_loss]


def baseline_function(config: "CreditConfig") -> Callable[..., torch.Tensor] | None:
    """`f(rewards, *, lengths, num_generations)`, shapes (N,), (N,) → (N,); `None` for TRL's own advantages."""
    return config.custom_function("baseline") or {"group": None, "optimal": optimal_advantage}[config.baseline]


def policy_mask(
    config: "CreditConfig", *, old_logp_t: torch.Tensor | None, segment_ids: torch.Tensor, mask_t: torch.Tensor
) -> torch.Tensor:
    """M before the loss: the tokens of the policy term or, for policy iteration, the last token of each segment.

    Args:
        config ([`CreditConfig`]):
            With the token mask and the policy loss.
        old_logp_t (`torch.Tensor` or `None`):
            Shape (B, T), nats; may be `None` without a token mask.
        segment_ids, mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T), zeros and ones of the type of `mask_t`; `mask_t` itself where M keeps all tokens.

    Raises:
        ValueError: a custom mask has the wrong shape, or values other than 0 and 1.
    """
    if config.policy_loss != "clip":
        return segment_ends(segment_ids, mask_t=mask_t)
    if config.token_mask == "none":
        return mask_t
    custom = config.custom_function("token_mask")
    keep = custom or selection.probability_mask
    kept_t = keep(old_logp_t, threshold=config.probability_threshold, mask_t=mask_t)
    return kept_t if custom is None else _checked_mask(kept_t, mask_t, "token_mask", config.token_mask)


def log_probability_gradient(
    config: "CreditConfig",
    *,
    coefficient_t: torch.Tensor,
    selected_t: torch.Tensor | None,
    turn_ids: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """∂/∂ℓ_k Σ_t c_t exp(W_t) at W = 0, which is Σ_t c_t ∂W_t/∂ℓ_k: the credit of token k including traces.

    For the W of the knobs. In closed form and O(T), without a graph.

    Args:
        config ([`CreditConfig`]):
            With the knobs of W. `importance` is not "sequence", whose W is TRL's.
        coefficient_t (`torch.Tensor`):
            c, shape (B, T), such as A·M; 0 outside of the loss.
        selected_t (`torch.Tensor` or `None`):
            z, from which W was made, shape (B, T).
        turn_ids, mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T).
    """
    by_turn = {"turn_ids": turn_ids, "mask_t": mask_t}
    if config.importance == "turn":
        return turns.turn_gradient(coefficient_t, **by_turn)
    if config.importance == "lambda_trace":
        trace = {"decay": config.trace_decay, "style": config.trace_style}
        if config.trace_unit == "turn":
            return turns.lambda_trace_turn_gradient(coefficient_t, **trace, **by_turn)
        return weights.traced_credit(coefficient_t, **trace) * mask_t
    if config.importance == "eligible":
        trace = _eligibility(config, selected_t)
        if config.trace_unit == "turn":
            return turns.eligible_turn_gradient(coefficient_t, **trace, **by_turn)
        return weights.eligible_gradient(coefficient_t, **trace, mask_t=mask_t)
    return coefficient_t  # no trace


def _eligibility(config: "CreditConfig", selected_t: torch.Tensor | None) -> dict[str, Any]:
    """Arguments of both functions of the eligibility trace. Without z every token leaves a trace."""
    selected_t = None if config.selector == "none" else selected_t
    return {"decay": config.trace_decay, "selected_t": selected_t, "leave_own_out": config.leave_own_out}


def _log_weight(config: "CreditConfig", tokens: Tokens, selected_t: torch.Tensor | None) -> torch.Tensor | None:
    logp_t, given = tokens.logp_t, {"old_logp_t": tokens.old_logp_t, "mask_t": tokens.mask_t}
    if config.importance == "sequence_token":
        return weights.sequence_token_log_weight(logp_t, **given)
    if config.importance == "turn":
        return turns.turn_log_weight(logp_t, turn_ids=tokens.turn_ids, **given)
    if config.importance == "turn_token":
        return turns.turn_token_log_weight(logp_t, turn_ids=tokens.turn_ids, **given)
    if config.importance == "lambda_trace":
        trace = {"decay": config.trace_decay, "style": config.trace_style}
        if config.trace_unit == "turn":
            return turns.lambda_trace_turn_log_weight(logp_t, turn_ids=tokens.turn_ids, **trace, **given)
        return weights.lambda_trace_log_weight(logp_t, **trace, **given)
    if config.importance == "eligible":
        trace = _eligibility(config, selected_t)
        if config.trace_unit == "turn":
            return turns.eligible_turn_log_weight(logp_t, turn_ids=tokens.turn_ids, **trace, **given)
        return weights.eligible_log_weight(logp_t, **trace, **given)
    return None  # "token" and "sequence" are TRL's own


def _selected(config: "CreditConfig", tokens: Tokens) -> torch.Tensor | None:
    """z, shape (B, T). With `trace_unit="turn"` the selector sees the turns of each row in place of its tokens, with
    their mean entropies, and all loss tokens of a turn have its z."""
    if config.selector == "none":
        return tokens.mask_t if config.has_trace else None
    entropy_t = tokens.ref_entropy_t if config.selector == "entropy_reference" else tokens.entropy_t
    if config.trace_unit == "turn":
        table = turns.TurnTable(tokens.turn_ids, tokens.mask_t)
        counts = (table.count > 0).to(tokens.mask_t.dtype)
        chosen = _chosen(config, tokens, table.mean(entropy_t.detach()), mask_t=counts)
        return table.by_token(chosen)
    return _chosen(config, tokens, entropy_t, mask_t=tokens.mask_t)


def _chosen(config: "CreditConfig", tokens: Tokens, entropy_t: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """The choice of the selector among tokens or turns, shape (B, T)."""
    if (custom := config.custom_function("selector")) is not None:
        chosen = custom(entropy_t, rate=config.selective_rate, mask_t=mask_t)
        return _checked_mask(chosen, mask_t, "selector", config.selector)
    if config.selector == "random":
        generator = torch.Generator().manual_seed(tokens.seed)
        return selection.select_random(config.selective_rate, generator=generator, mask_t=mask_t)
    order = tokens.entropy_order if entropy_t is tokens.entropy_t else None
    return selection.select_high_entropy(entropy_t, rate=config.selective_rate, mask_t=mask_t, order=order)


def _checked_mask(found: torch.Tensor, mask_t: torch.Tensor, knob: str, name: str) -> torch.Tensor:
    """The result of a custom mask function, with the type of `mask_t` and 0 outside of it."""
    rule = f"{knob} {name!r} must return a tensor of zeros and ones of the shape of mask_t, {tuple(mask_t.shape)}"
    if not isinstance(found, torch.Tensor) or found.shape != mask_t.shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ValueError(f"{rule}; it returned {got}.")
    found = found.detach().masked_fill(~mask_t.bool(), 0)
    if not ((found == 0) | (found == 1)).all():  # before the cast, which would round 0.9 down to 0
        raise ValueError(f"{rule}; it returned other values.")
    return found.to(mask_t.dtype)
