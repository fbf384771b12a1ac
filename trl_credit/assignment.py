"""From knobs and log-probabilities to the three tensors of credit: (W, A, M)."""

from typing import NamedTuple

import torch

from .config import CreditConfig
from .credit import advantages as adv
from .credit import segments, selection, weights


class Credit(NamedTuple):
    """What a GRPO loss needs to know about each token. All of shape (B, T), except `log_weight` where it is `None`.

    Attributes:
        log_weight: W, carries the gradient. `None` where TRL's own importance weight is the wanted one.
        advantage: A, with the factor of the loss weight on it and 0 where `mask` is 0.
        mask: M, 1 for the tokens of the policy term.
        selected: z, 1 for the tokens that leave a trace, or `None` without traces.
    """

    log_weight: torch.Tensor | None
    advantage: torch.Tensor
    mask: torch.Tensor
    selected: torch.Tensor | None


def assign_credit(
    config: CreditConfig,
    *,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    entropy_t: torch.Tensor,
    advantages: torch.Tensor,
    mask_t: torch.Tensor,
) -> Credit:
    """Applies the per-token knobs of `config` to one micro-batch.

    Args:
        config ([`CreditConfig`]):
            Its importance, trace, loss-weight, floor and mask knobs are read.
        logp_t, old_logp_t, entropy_t (`torch.Tensor`):
            Shape (B, T), nats.
        advantages (`torch.Tensor`):
            Shape (B,) or (B, T).
        mask_t (`torch.Tensor`):
            Shape (B, T), 1 for the tokens the loss sees.

    Returns:
        [`Credit`].

    Raises:
        ValueError: advantages that differ inside a row under `importance="sequence"`.
    """
    if config.importance == "sequence" and advantages.dim() == 2 and _differs_inside_a_row(advantages, mask_t):
        raise ValueError(
            "importance='sequence' averages over the response, so advantages that differ from token to token would be "
            "averaged away: set importance='sequence_token'."
        )
    advantage = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    if config.advantage_floor is not None:
        advantage = advantage.clamp(min=config.advantage_floor)
    if config.loss_weight != "none":
        direction = config.loss_weight.removeprefix("trace_")
        advantage = advantage * adv.trace_loss_weight(
            direction, decay=config.trace_decay, style=config.trace_style, mask_t=mask_t.to(advantage.dtype)
        )
    policy_mask = mask_t
    if config.token_mask == "probability":
        policy_mask = selection.probability_mask(old_logp_t, threshold=config.probability_threshold, mask_t=mask_t)
        # masked out of the policy term, while the KL term keeps every token
        advantage = advantage * policy_mask * _normalizer_ratio(config.loss_type, mask_t.to(logp_t.dtype), policy_mask)

    selected = _selected(config, entropy_t, mask_t)
    return Credit(_log_weight(config, logp_t, old_logp_t, selected, mask_t), advantage, policy_mask, selected)


def assign_policy_iteration(
    config: CreditConfig,
    *,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    ref_logp_t: torch.Tensor,
    advantages: torch.Tensor,
    segment_ids: torch.Tensor,
    mask_t: torch.Tensor,
) -> Credit:
    """The loss of policy iteration as credit: W = 0, so that exp(W)·A = A, and A = −loss, which carries the gradient.

    The loss of a segment stands at its last token, and the mean runs over segments. Shapes as in [`assign_credit`].
    """
    loss_t, ends = segments.policy_iteration_loss(
        logp_t,
        old_logp_t=old_logp_t,
        ref_logp_t=ref_logp_t,
        advantage_t=advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand_as(logp_t),
        segment_ids=segment_ids,
        beta=config.beta,
        mask_t=mask_t,
    )
    advantage = -loss_t * _normalizer_ratio(config.loss_type, mask_t.to(logp_t.dtype), ends)
    return Credit(torch.zeros_like(logp_t), advantage, ends, None)


def _log_weight(
    config: CreditConfig,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    selected: torch.Tensor | None,
    mask_t: torch.Tensor,
) -> torch.Tensor | None:
    given = {"old_logp_t": old_logp_t, "mask_t": mask_t}
    if config.importance == "sequence_token":
        return weights.sequence_token_log_weight(logp_t, **given)
    if config.importance == "lambda_trace":
        return weights.lambda_trace_log_weight(logp_t, decay=config.trace_decay, style=config.trace_style, **given)
    if config.importance == "eligible":
        selected_t = None if config.selector == "none" else selected
        return weights.eligible_log_weight(
            logp_t, decay=config.trace_decay, selected_t=selected_t, leave_own_out=config.leave_own_out, **given
        )
    return None


def _selected(config: CreditConfig, entropy_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor | None:
    if config.selector == "entropy":
        return selection.select_high_entropy(entropy_t, rate=config.selective_rate, mask_t=mask_t)
    if config.selector == "random":
        return selection.select_random(config.selective_rate, mask_t=mask_t)
    return mask_t if config.has_trace else None


def _differs_inside_a_row(x_t: torch.Tensor, mask_t: torch.Tensor) -> bool:
    low = torch.where(mask_t.bool(), x_t, torch.inf).amin(-1)
    high = torch.where(mask_t.bool(), x_t, -torch.inf).amax(-1)
    return bool((high > low).any())


def _normalizer_ratio(loss_type: str, mask_t: torch.Tensor, policy_mask: torch.Tensor) -> torch.Tensor | float:
    """Turns a mean over all loss tokens into one over the kept ones, where TRL divides by the row or the batch.

    min(ρA, clip(ρ)A) scales with A by any factor ≥ 0, so the factor may sit on the advantage. The losses that divide
    by `num_items_in_batch` have that number recounted instead, and Dr.GRPO's normaliser counts no tokens at all.
    """
    if loss_type in ("grpo", "sapo", "luspo"):
        return mask_t.sum(-1, keepdim=True) / policy_mask.sum(-1, keepdim=True).clamp(min=1)
    if loss_type == "bnpo":
        return mask_t.sum() / policy_mask.sum().clamp(min=1)
    return 1.0
