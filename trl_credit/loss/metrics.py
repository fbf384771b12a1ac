"""The metrics under `credit/`: sums and counts of one micro-batch, and of one generation batch."""

import hashlib

import torch

from ..config import CreditConfig
from ..credit.advantages import confidence_slope
from ..credit.clipping import is_clipped
from ..credit.effective import travelled
from ..credit.selection import select_high_entropy
from ..credit.shares import last_tokens, noise_outside
from ..credit.tokens import Credit, Tokens
from ..credit.turns import TurnTable
from ..credit.weights import sequence_log_weight, traced_sum
from .assignment import log_probability_gradient, wide


def loss_statistics(
    config: CreditConfig,
    credit: Credit,
    tokens: Tokens,
    *,
    carries_loss: bool = False,
    clip_range: tuple[float, float],
    quarter_t: torch.Tensor | None = None,
    entropy_mask_t: torch.Tensor | None = None,
    in_detail: bool = True,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Numerator and denominator (0-dimensional tensors) of every metric of one micro-batch, by name.

    Processes add these sums before dividing, since their numbers of tokens differ. The names depend only on the
    configuration, the credit function and `in_detail`, so every process has the same ones. They describe the W that is
    used: a custom loss has no clip fraction, and a W without a trace has no trace metrics.

    In every micro-batch:

    * Clip fraction: the share of all tokens, and the mean over rows of each row's share, where a short response counts
      as much as a long one (S-trace, arXiv 2605.05965, Sec. 5.4). Rows are responses, except with trees.
    * Trained tokens: those in the policy term, before TRL's `top_entropy_quantile`. Every row counts, so the mean per
      row times the rows of an optimizer step is their number.
    * |A|: over the tokens in the policy term, before any normaliser, so the same for every `loss_type` and mask. With
      a custom loss it is the advantage that the function was given.
    * Noise share: the share of gradient noise outside of the selection ([`known_selection`]), over the loss tokens. See
      [`~trl_credit.credit.shares.noise_outside`]. ℓ is π_old's, of the training model at the sampling temperature
      (with `behavior_logps="sampler"` the engine's own); what `top_p` or `top_k` cut off is not renormalised. Without
      a selection it is measured in detail alone, because finding the fifth of highest entropy takes a sort.

    In detail also |A| by quarter of the response, how a trace spreads credit ([`_trace_statistics`]), and:

    * Effective horizon: how many tokens back the credit of a token travels on average, weighted by |A|, where what
      stays at its token travels 0. See [`~trl_credit.credit.effective.travelled`]; `explain` shows the same number.
    * Last tokens' share: |∂L/∂ℓ| at ratio 1 on the last 20 tokens that the policy wrote in a response, against their
      uniform share. See [`~trl_credit.credit.shares.last_tokens`]. Without a custom W or loss, and without trees, whose
      rows are not responses.

    Args:
        carries_loss (`bool`, *optional*, defaults to `False`):
            Whether A is minus a loss.
        clip_range (`tuple[float, float]`):
            Clip range of the ratio.
        quarter_t (`torch.Tensor`, *optional*):
            Quarter of the response, 0 … 3, that each token lies in, −1 if unknown, shape (B, T). Without it every row
            is a response.
        entropy_mask_t (`torch.Tensor`, *optional*):
            Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T).
        in_detail (`bool`, *optional*, defaults to `True`):
            Whether to measure what takes more calls than the credit itself: at logging steps and in evaluation.
    """
    mask_t = tokens.mask_t.float()
    kept = tokens.policy_mask_t.float()
    if credit.mask is not None:
        kept = kept * credit.mask.float()
    kept_n = kept.sum(-1)
    n_kept = kept_n.sum()
    n_tokens = n_kept if kept is mask_t else mask_t.sum()
    advantage = wide(credit.advantage.detach())
    stats = {"trained_tokens_per_row": (n_kept, len(kept))}
    if not carries_loss:
        log_weight_t = used_log_weight(config, credit, tokens)
        clipped = is_clipped(log_weight_t, advantage_t=advantage, clip_range=clip_range, form=config.clip_form)
        clipped_n = (clipped * kept).sum(-1)
        stats["clip_fraction"] = (clipped_n.sum(), n_kept)
        stats["clip_fraction/response_mean"] = ((clipped_n / kept_n.clamp(min=1)).sum(), (kept_n > 0).sum())
    if config.token_mask != "none" or credit.mask is not None:
        stats["kept_fraction"] = (n_kept, n_tokens)
    if credit.selected is not None:
        stats["selected_fraction"] = ((credit.selected.float() * mask_t).sum(), n_tokens)
    # a loss weight is no part of the advantage, and with a custom loss A is not an advantage
    given = wide(tokens.advantages) if carries_loss or config.loss_weight != "none" else advantage
    counted = mask_t * (tokens.segment_ids >= 0) if carries_loss else kept
    # where the loss is blind, values may not be finite
    sized_t = given.detach().abs().float().masked_fill(mask_t == 0, 0.0) * counted
    stats["abs_advantage"] = (sized_t.sum(), counted.sum() if carries_loss else n_kept)
    selected_t = known_selection(config, credit, entropy_mask_t=entropy_mask_t)
    if selected_t is not None or in_detail:
        if selected_t is None:
            order = tokens.entropy_order
            selected_t = select_high_entropy(tokens.entropy_t, rate=0.2, mask_t=tokens.mask_t, order=order)
        stats["noise_share"] = noise_outside(tokens.old_logp_t, selected_t=selected_t, mask_t=tokens.mask_t)
    if in_detail:
        quarter_t = _row_quarters(tokens.turn_ids >= 0) if quarter_t is None else quarter_t
        sizes = torch.stack([sized_t, counted])
        stats |= _by_part(sizes, quarter_t, [f"abs_advantage/quarter_{q}" for q in range(1, 5)])
        if not carries_loss:
            how = {"kept": kept, "quarter_t": quarter_t, "entropy_mask_t": entropy_mask_t}
            stats |= _spread(config, credit, tokens, **how)
    return stats


def _spread(
    config: CreditConfig,
    credit: Credit,
    tokens: Tokens,
    *,
    kept: torch.Tensor,
    quarter_t: torch.Tensor,
    entropy_mask_t: torch.Tensor | None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Where the credit of a token goes: metrics of traces, coefficients, the share of the last tokens."""
    stats = {}
    # `selected` describes the W of the knobs, not a custom one
    traced = credit.selected is not None and credit.log_weight is credit.traced is not None
    weighted = config.loss_weight != "none" and credit.log_weight is None and config.importance != "sequence"
    if traced:
        size_t = wide(credit.advantage.detach()).abs() * kept
        stats |= _trace_statistics(config, tokens, selected=credit.selected.float(), size_t=size_t)
    has_last = credit.log_weight is credit.traced and config.rollouts != "tree"
    if traced or weighted or (has_last and entropy_mask_t is None):
        gradient_t = _gradient(config, credit, tokens, kept=kept)
    if traced or weighted:
        stats |= _coefficients(tokens, gradient_t, kept=kept, quarter_t=quarter_t)
    if has_last:
        if entropy_mask_t is not None:
            gradient_t = _gradient(config, credit, tokens, kept=kept * entropy_mask_t)
        stats["last_tokens_share"] = last_tokens(gradient_t, mask_t=tokens.turn_ids >= 0)
    return stats


def known_selection(
    config: CreditConfig, credit: Credit, *, entropy_mask_t: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The tokens outside of which `noise_share` looks, shape (B, T): those of the run's selector, else those that TRL's
    `top_entropy_quantile` keeps (`entropy_mask_t`). `None` without either: then it is the fifth of highest entropy in
    each row."""
    if config.selector != "none" and credit.selected is not None:
        return credit.selected
    return entropy_mask_t


def _gradient(config: CreditConfig, credit: Credit, tokens: Tokens, *, kept: torch.Tensor) -> torch.Tensor:
    """−∂L/∂ℓ at ratio 1, before any normaliser, shape (B, T); `kept` is M."""
    credited_t = torch.where(kept.bool(), wide(credit.advantage.detach()), 0.0)
    credited = {"coefficient_t": credited_t, "selected_t": credit.selected}
    gradient_t = log_probability_gradient(config, **credited, turn_ids=tokens.turn_ids, mask_t=tokens.mask_t)
    if config.has_weight_gradient:
        slope_t = confidence_slope(tokens.logp_t, kind=config.loss_weight_confidence, mask_t=tokens.mask_t)
        gradient_t = gradient_t + credited_t * slope_t
    return gradient_t


def _coefficients(
    tokens: Tokens, gradient_t: torch.Tensor, *, kept: torch.Tensor, quarter_t: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """|∂L/∂ℓ| / |A| at ratio 1, before any normaliser: the factor between a token's advantage and its gradient, of
    [`_gradient`].

    It is 1 without traces. By quarter of the response, and by decile of the entropy among the tokens of a response, as
    the selector ranks them (9 is the highest). Over the tokens in the policy term with an advantage other than 0,
    before TRL's `top_entropy_quantile`.
    """
    given = torch.where(kept.bool(), wide(tokens.advantages).detach().abs(), 0.0)
    has_credit = given > 0
    size_t = torch.where(has_credit, gradient_t.abs() / given, 0.0)
    order = tokens.entropy_order
    rank = torch.arange(order.size(-1), device=order.device)
    # decile of each place in the order, below 0 outside of the loss
    count = tokens.mask_t.sum(-1, keepdim=True).long().clamp(min=1)
    decile_t = 9 - (10 * rank).div(count, rounding_mode="floor")
    values = torch.stack([size_t, has_credit.to(size_t.dtype)])
    ranked = values.gather(-1, order.expand_as(values))
    stats = _by_part(ranked, decile_t, [f"coefficient/entropy_decile_{d}" for d in range(10)])
    return stats | _by_part(values, quarter_t, [f"coefficient/quarter_{q}" for q in range(1, 5)])


def _by_part(
    values: torch.Tensor, part_t: torch.Tensor, names: list[str]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Sums of numerators and denominators, `values` (2, B, T), over the tokens of each named part, in one pass.

    `part_t` (B, T) numbers the parts from 0. Tokens with other numbers are left out.
    """
    n_parts = len(names)
    bins_t = torch.where((part_t < 0) | (part_t >= n_parts), n_parts, part_t)
    rows = values.new_zeros(*values.shape[:2], n_parts + 1)
    sums = rows.scatter_add(-1, bins_t.expand_as(values), values).sum(1)
    return {name: (sums[0, part], sums[1, part]) for part, name in enumerate(names)}


def _row_quarters(written_t: torch.Tensor) -> torch.Tensor:
    """Quarter ⌊4i/n⌋ of token i of the n that the policy wrote in a row, −1 at other tokens. Shapes (B, T)."""
    rank = written_t.long().cumsum(-1) - 1
    quarter_t = (4 * rank).div(written_t.sum(-1, keepdim=True).clamp(min=1), rounding_mode="floor")
    return quarter_t.masked_fill(~written_t, -1)


def clipped_tokens(config: CreditConfig, credit: Credit, tokens: Tokens) -> torch.Tensor:
    """True where the clip of the configuration leaves a token without a gradient, shape (B, T)."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    how = {"clip_range": (1 - config.epsilon, 1 + high), "form": config.clip_form}
    return is_clipped(used_log_weight(config, credit, tokens), advantage_t=wide(credit.advantage.detach()), **how)


def used_log_weight(config: CreditConfig, credit: Credit, tokens: Tokens) -> torch.Tensor:
    """The W whose exponential the loss uses, shape (B, T), detached."""
    if credit.log_weight is not None:
        return credit.log_weight.detach()
    if config.importance == "sequence":
        return sequence_log_weight(tokens.logp_t.detach(), old_logp_t=tokens.old_logp_t, mask_t=tokens.mask_t)
    return tokens.logp_t.detach() - tokens.old_logp_t


def _trace_statistics(
    config: CreditConfig, tokens: Tokens, *, selected: torch.Tensor, size_t: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Trace mass Σ_{k<t} tr(t,k) z_k, over tokens k or turns (`trace_unit`), in the mean over tokens, and the effective
    horizon (tokens). `size_t`, shape (B, T), is |A|·M."""
    mask_t, turn_ids = tokens.mask_t, tokens.turn_ids
    style = config.trace_style if config.importance == "lambda_trace" else "recent"
    trace = {"decay": config.trace_decay, "style": style}
    if config.trace_unit == "turn":
        turns = TurnTable(turn_ids, mask_t)
        z = turns.mean(selected)
        mass_t = turns.by_token(traced_sum(z, **trace) - z)
    else:
        z_t = selected * mask_t.float()
        mass_t = (traced_sum(z_t, **trace) - z_t) * mask_t

    def back(c_t: torch.Tensor) -> torch.Tensor:
        given = {"selected_t": selected, "turn_ids": turn_ids, "mask_t": mask_t}
        return log_probability_gradient(config, coefficient_t=c_t, **given)

    sizes = torch.where(mask_t.bool(), size_t, 0.0)
    return {"trace_mass": (mass_t.sum(), mask_t.float().sum()), "effective_horizon": travelled(back, sizes)}


def expert_drift(
    experts_t: torch.Tensor, *, old_experts_t: torch.Tensor, mask_t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Share of the experts of a token and layer under π_old that the current policy does not use (GSPO, arXiv
    2507.18071, Sec. 5.3), over the tokens of the loss, as a sum and a count.

    Args:
        experts_t, old_experts_t (`torch.Tensor`):
            Numbers of the k experts of each layer, integers, shape (B, T, layers, k), in any order.
        mask_t (`torch.Tensor`):
            Shape (B, T).
    """
    kept, k = mask_t.float(), experts_t.size(-1)
    changed = torch.zeros((), device=mask_t.device)
    for new_t, old_t in zip(experts_t.unbind(2), old_experts_t.unbind(2), strict=True):  # layer by layer, for memory
        is_used = (old_t.unsqueeze(-1) == new_t.unsqueeze(-2)).any(-1)
        changed += ((~is_used).sum(-1) * kept).sum()
    return changed, kept.sum() * k * experts_t.size(2)


def difficulty_statistics(
    phi: torch.Tensor, advantages: torch.Tensor, *, p_hat: torch.Tensor, prior: float
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Mean weight Φ for A above and below 0, and for prompts harder and easier than the belief, as sums and counts. All
    tensors have one shape: (B,), or (B, T) by token."""
    sides = (("harder", p_hat < prior), ("easier", p_hat > prior))
    signs = (("positive", advantages > 0), ("negative", advantages < 0))
    return {
        f"difficulty_weight/{side}_{sign}": ((phi * (rows & signed)).sum(), (rows & signed).sum())
        for side, rows in sides
        for sign, signed in signs
    }


def response_hashes(completion_ids: torch.Tensor, *, pad_token_id: int) -> torch.Tensor:
    """One int64 per row of `completion_ids` (B, T), without trailing padding, the same on every process."""
    rows = completion_ids.cpu().numpy().astype("<i8")
    hashes = []
    for row in rows:
        used = (row != pad_token_id).nonzero()[0]
        text = row[: used[-1] + 1 if len(used) else 0].tobytes()
        hashes.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True))
    return torch.tensor(hashes, dtype=torch.int64, device=completion_ids.device)


def group_statistics(
    rewards: torch.Tensor, hashes: torch.Tensor, *, num_generations: int, credited: torch.Tensor | None = None
) -> dict[str, float]:
    """Share of groups without signal, and mean number of different responses per group.

    A group has no signal if none of its responses is `credited` (N,), or without `credited` if all its rewards are
    equal. `rewards` (N,) may hold NaN (no score); `hashes` (N,) are int64. Groups are consecutive.
    """
    if credited is None:
        grouped = rewards.view(-1, num_generations)
        low = grouped.nan_to_num(nan=torch.inf).amin(-1)
        high = grouped.nan_to_num(nan=-torch.inf).amax(-1)
        is_flat = high <= low
    else:
        is_flat = ~credited.view(-1, num_generations).any(-1)
    ordered = hashes.view(-1, num_generations).sort(-1).values
    unique = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1)
    means = torch.stack([is_flat.float().mean(), unique.float().mean()]).tolist()
    return dict(zip(("groups_without_signal", "unique_responses"), means, strict=True))


def length_statistics(lengths: list[int], truncated: list[bool]) -> dict[str, float]:
    """TRL's metrics under `completions/` for responses of these lengths (tokens); `truncated` ones did not end."""
    length, ended = torch.tensor(lengths, dtype=torch.float), ~torch.tensor(truncated)
    terminated = length[ended] if ended.any() else torch.zeros(1)
    stats = {"clipped_ratio": (1 - ended.float().sum() / len(lengths)).item()}
    for kind, x in (("length", length), ("terminated_length", terminated)):
        stats |= {f"mean_{kind}": x.mean().item(), f"min_{kind}": x.min().item(), f"max_{kind}": x.max().item()}
    return stats
