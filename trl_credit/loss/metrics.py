"""The metrics under `credit/`: sums and counts of one micro-batch, and of one generation batch."""

import hashlib

import torch

from ..config import CreditConfig
from ..credit.clipping import is_clipped
from ..credit.gradient import travelled
from ..credit.selection import select_high_entropy
from ..credit.shares import last_tokens, noise_outside
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..credit.turns import TurnTable
from ..credit.weights import traced_sum
from .assignment import log_weight_of


def loss_statistics(
    config: CreditConfig,
    credit: Credit,
    tokens: Tokens,
    *,
    carries_loss: bool = False,
    gradient_t: torch.Tensor | None = None,
    quarter_t: torch.Tensor | None = None,
    entropy_mask_t: torch.Tensor | None = None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Numerator and denominator (0-dimensional tensors) of every metric of one micro-batch, by name.

    Processes add these sums before dividing, since their numbers of tokens differ. The names depend only on the
    configuration, the algorithm and whether `gradient_t` is given, so every process has the same ones. They describe
    the W that is used: a custom loss has no clip fraction, and a W without a trace has no trace metrics.

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

    In detail, with `gradient_t`, also |A| by quarter of the response, how a trace spreads credit, and:

    * Effective horizon: how many tokens back the credit of a token travels on average, weighted by |A|, where what
      stays at its token travels 0. See [`~trl_credit.credit.gradient.travelled`]; `explain` shows the same number.
    * Last tokens' share: credit on the last 20 tokens that the policy wrote in a response, against their uniform share.
      See [`~trl_credit.credit.shares.last_tokens`]. Without trees, whose rows are not responses.

    Args:
        carries_loss (`bool`, *optional*, defaults to `False`):
            Whether A is minus a loss.
        gradient_t (`torch.Tensor`, *optional*):
            c of [`~trl_credit.credit.gradient.token_credit`], shape (B, T): at logging steps and in evaluation.
        quarter_t (`torch.Tensor`, *optional*):
            Quarter of the response, 0 … 3, that each token lies in, −1 if unknown, shape (B, T). Without it every row
            is a response.
        entropy_mask_t (`torch.Tensor`, *optional*):
            Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T).
    """
    mask_t = tokens.mask_t.float()
    kept = kept_tokens(credit, tokens).float()
    kept_n = kept.sum(-1)
    n_kept = kept_n.sum()
    n_tokens = mask_t.sum()
    advantage = wide(credit.advantage.detach())
    stats = {"trained_tokens_per_row": (n_kept, len(kept))}
    if not carries_loss:
        clipped_n = (clipped_tokens(config, credit, tokens) * kept).sum(-1)
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
    if selected_t is not None or gradient_t is not None:
        if selected_t is None:
            order = tokens.entropy_order
            selected_t = select_high_entropy(tokens.entropy_t, rate=0.2, mask_t=tokens.mask_t, order=order)
        stats["noise_share"] = noise_outside(tokens.old_logp_t, selected_t=selected_t, mask_t=tokens.mask_t)
    if gradient_t is not None:
        quarter_t = _row_quarters(tokens.turn_ids >= 0) if quarter_t is None else quarter_t
        sizes = torch.stack([sized_t, counted])
        stats |= _by_part(sizes, quarter_t, [f"abs_advantage/quarter_{q}" for q in range(1, 5)])
        if not carries_loss:
            stats |= _spread(config, credit, tokens, gradient_t=gradient_t, kept=kept, quarter_t=quarter_t)
        if config.rollouts != "tree":
            stats["last_tokens_share"] = last_tokens(gradient_t, mask_t=tokens.turn_ids >= 0)
    return stats


def _spread(
    config: CreditConfig,
    credit: Credit,
    tokens: Tokens,
    *,
    gradient_t: torch.Tensor,
    kept: torch.Tensor,
    quarter_t: torch.Tensor,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Where the credit of a token goes: metrics of traces, and the factor between its advantage and its credit."""
    stats = {}
    # `selected` describes the W of the knobs, not a custom one
    traced = credit.selected is not None and credit.log_weight is credit.traced is not None
    if traced:
        size_t = wide(credit.advantage.detach()).abs() * kept
        stats |= _trace_statistics(config, tokens, credit, size_t=size_t)
    if traced or (config.loss_weight != "none" and credit.log_weight is None and config.importance != "sequence"):
        stats |= _coefficients(tokens, gradient_t, kept=kept, quarter_t=quarter_t)
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


def _coefficients(
    tokens: Tokens, gradient_t: torch.Tensor, *, kept: torch.Tensor, quarter_t: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """|c| / |A|: the factor between a token's advantage and its credit.

    It is 1 at ratio 1 without traces, and 0 where a token is clipped. By quarter of the response, and by decile of the
    entropy among the tokens of a response, as the selector ranks them (9 is the highest). Over the tokens in the policy
    term with an advantage other than 0.
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
    log_weight_t, advantage_t = log_weight_of(config, credit, tokens), wide(credit.advantage.detach())
    return is_clipped(log_weight_t, advantage_t=advantage_t, clip_range=config.clip_range, form=config.clip_form)


def _trace_statistics(
    config: CreditConfig, tokens: Tokens, credit: Credit, *, size_t: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Trace mass Σ_{k<t} tr(t,k) z_k, over tokens k or turns (`trace_unit`), in the mean over tokens, and the effective
    horizon (tokens). `size_t`, shape (B, T), is |A|·M."""
    mask_t, selected = tokens.mask_t, credit.selected.float()
    style = config.trace_style if config.importance == "lambda_trace" else "recent"
    trace = {"decay": config.trace_decay, "style": style}
    if config.trace_unit == "turn":
        turns = TurnTable(tokens.turn_ids, mask_t)
        z = turns.mean(selected)
        mass_t = turns.by_token(traced_sum(z, **trace) - z)
    else:
        z_t = selected * mask_t.float()
        mass_t = (traced_sum(z_t, **trace) - z_t) * mask_t
    sizes_t = torch.where(mask_t.bool(), size_t, 0.0)
    horizon = travelled(credit.log_weight, logp_t=tokens.logp_t, coefficient_t=sizes_t)
    return {"trace_mass": (mass_t.sum(), mask_t.float().sum()), "effective_horizon": horizon}


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
