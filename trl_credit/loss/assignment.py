"""The built-in credit functions: from knobs and log-probabilities to the three tensors (W, A, M)."""

from dataclasses import replace

import torch

from ..config import CreditConfig
from ..credit import selection, turns, weights
from ..credit.advantages import confidence_weight, trace_loss_weight
from ..credit.clipping import clip_ratio_alone
from ..credit.segments import policy_iteration_loss, segment_ends
from ..credit.tokens import Credit, Tokens, wide


def known_or(x: torch.Tensor | None, default: torch.Tensor | None) -> torch.Tensor | None:
    """`x`, with `default` where it is NaN. Either may be `None`."""
    if x is None or default is None:
        return default if x is None else x
    return torch.where(x.isnan(), default, x)


def assign_credit(config: CreditConfig, tokens: Tokens) -> Credit:
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
        direction, mask_t = config.loss_weight.removeprefix("trace_"), tokens.mask_t.to(advantage.dtype)
        trace_t = trace_loss_weight(direction, decay=config.trace_decay, style=config.trace_style, mask_t=mask_t)
        advantage = advantage * trace_t
        if (kind := config.loss_weight_confidence) != "none":
            weight_t = confidence_weight(tokens.logp_t, kind=kind, mask_t=tokens.mask_t)
            advantage = advantage * weight_t.to(advantage.dtype)
    selected = _selected(config, tokens)
    log_weight = _log_weight(config, tokens, selected)
    return Credit(log_weight, advantage, selected=selected, traced=log_weight)


def policy_iteration(config: CreditConfig, tokens: Tokens) -> Credit:
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
    )
    if config.uses_released_code("spo_policy_iteration"):
        loss_t = 0.5 * loss_t
    return Credit(torch.zeros_like(tokens.logp_t), -loss_t)


def log_weight_of(config: CreditConfig, credit: Credit, tokens: Tokens) -> torch.Tensor:
    """The W whose exponential the loss uses, shape (B, T): that of the credit, or TRL's own."""
    if credit.log_weight is not None:
        return credit.log_weight
    if config.importance == "sequence":
        return weights.sequence_log_weight(tokens.logp_t, old_logp_t=tokens.old_logp_t, mask_t=tokens.mask_t)
    return tokens.logp_t - tokens.old_logp_t


def in_clip_form(config: CreditConfig, credit: Credit, tokens: Tokens) -> Credit:
    """With `clip_form="ratio"` credit that makes TRL's loss min(ρ, clip ρ)·A, see
    [`~trl_credit.credit.clipping.clip_ratio_alone`]; else the credit itself."""
    if config.clip_form != "ratio":
        return credit
    log_weight = log_weight_of(config, credit, tokens)
    log_weight, advantage = clip_ratio_alone(log_weight, wide(credit.advantage), clip_range=config.clip_range)
    return replace(credit, log_weight=log_weight, advantage=advantage)


def policy_mask(
    config: CreditConfig, *, old_logp_t: torch.Tensor | None, segment_ids: torch.Tensor, mask_t: torch.Tensor
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
    kept_t = (custom or selection.probability_mask)(old_logp_t, threshold=config.probability_threshold, mask_t=mask_t)
    return kept_t if custom is None else _checked_mask(kept_t, mask_t, "token_mask", config.token_mask)


def _log_weight(config: CreditConfig, tokens: Tokens, selected_t: torch.Tensor | None) -> torch.Tensor | None:
    """W by the knobs; `None` for `importance` "token" and "sequence", which are TRL's own."""
    of_token = {"old_logp_t": tokens.old_logp_t, "mask_t": tokens.mask_t}
    of_turn = of_token | {"turn_ids": tokens.turn_ids}
    unit, of_unit = (turns, of_turn) if config.trace_unit == "turn" else (weights, of_token)
    decay = config.trace_decay
    match config.importance:
        case "sequence_token":
            return weights.sequence_token_log_weight(tokens.logp_t, **of_token)
        case "turn":
            return turns.turn_log_weight(tokens.logp_t, **of_turn)
        case "turn_token":
            return turns.turn_token_log_weight(tokens.logp_t, **of_turn)
        case "lambda_trace":
            return unit.lambda_trace_log_weight(tokens.logp_t, decay=decay, style=config.trace_style, **of_unit)
        case "eligible":  # without a selector every token leaves a trace
            z_t, own = None if config.selector == "none" else selected_t, config.leave_own_out
            return unit.eligible_log_weight(tokens.logp_t, decay=decay, selected_t=z_t, leave_own_out=own, **of_unit)
    return None


def _selected(config: CreditConfig, tokens: Tokens) -> torch.Tensor | None:
    """z, shape (B, T). With `trace_unit="turn"` the selector sees the turns of each row in place of its tokens, with
    their mean entropies, and all loss tokens of a turn have its z."""
    if config.selector == "none":
        return tokens.mask_t if config.has_trace else None
    entropy_t = tokens.ref_entropy_t if config.selector == "entropy_reference" else tokens.entropy_t
    if config.trace_unit == "turn":
        table = turns.TurnTable(tokens.turn_ids, tokens.mask_t)
        counts = (table.count > 0).to(tokens.mask_t.dtype)
        return table.by_token(_chosen(config, tokens, table.mean(entropy_t.detach()), mask_t=counts))
    return _chosen(config, tokens, entropy_t, mask_t=tokens.mask_t)


def _chosen(config: CreditConfig, tokens: Tokens, entropy_t: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """The choice of the selector among tokens or turns, shape (B, T)."""
    if (custom := config.custom_function("selector")) is not None:
        chosen = custom(entropy_t, rate=config.selective_rate, mask_t=mask_t)
        return _checked_mask(chosen, mask_t, "selector", config.selector)
    if config.selector == "random":
        generator = torch.Generator().manual_seed(tokens.seed)
        return selection.select_random(config.selective_rate, generator=generator, mask_t=mask_t)
    order = tokens.entropy_order if entropy_t is tokens.entropy_t else None
    return selection.select_high_entropy(entropy_t, rate=config.selective_rate, mask_t=mask_t, order=order)


def described(result: object) -> str:
    """Type and shape of what a custom function returned, for an error message."""
    is_tensor = isinstance(result, torch.Tensor)
    return f"{result.dtype} of shape {tuple(result.shape)}" if is_tensor else type(result).__name__


def _checked_mask(result: torch.Tensor, mask_t: torch.Tensor, knob: str, name: str) -> torch.Tensor:
    """The result of a custom mask function, with the type of `mask_t` and 0 outside of it."""
    if isinstance(result, torch.Tensor) and result.shape == mask_t.shape:
        result = result.detach().masked_fill(~mask_t.bool(), 0)
        if ((result == 0) | (result == 1)).all():  # before the cast, which would round 0.9 down to 0
            return result.to(mask_t.dtype)
    rule = f"{knob} {name!r} must return a tensor of zeros and ones of the shape of mask_t, {tuple(mask_t.shape)}"
    raise ValueError(f"{rule}; it returned {described(result)}.")
