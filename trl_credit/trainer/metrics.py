"""What a run shows under `credit/`: sums and counts of one micro-batch, and of one generation batch."""

import hashlib

import torch

from ..assignment import Credit
from ..config import CreditConfig
from ..credit.advantages import trace_statistics
from ..credit.weights import sequence_log_weight, traced_sum


def loss_statistics(
    config: CreditConfig,
    credit: Credit,
    *,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    mask_t: torch.Tensor,
    clip_range: tuple[float, float],
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Numerator and denominator (0-dimensional tensors) of every metric of one micro-batch, by name.

    Returned as sums, so that processes with different numbers of tokens add them before dividing. The names depend on
    the configuration alone: every process makes the same ones.
    """
    logp_t, mask_t = logp_t.detach(), mask_t.float()
    n_tokens = mask_t.sum()
    if credit.log_weight is not None:
        log_weight = credit.log_weight.detach()
    elif config.importance == "sequence":
        log_weight = sequence_log_weight(logp_t, old_logp_t=old_logp_t, mask_t=mask_t)
    else:
        log_weight = logp_t - old_logp_t
    kept = credit.mask.float()
    ratio, advantage = log_weight.exp(), credit.advantage
    clipped = ((ratio < clip_range[0]) & (advantage < 0)) | ((ratio > clip_range[1]) & (advantage > 0))
    stats = {"clip_fraction": ((clipped * kept).sum(), kept.sum())}
    if config.token_mask != "none":
        stats["kept_fraction"] = (kept.sum(), n_tokens)
    if credit.selected is not None:
        stats["selected_fraction"] = ((credit.selected * mask_t).sum(), n_tokens)
        if config.importance == "lambda_trace" and config.trace_style == "both":
            mass = (traced_sum(mask_t, decay=config.trace_decay, style="both") - mask_t) * mask_t
            stats["trace_mass"] = (mass.sum(), n_tokens)
        else:
            mass, moment = trace_statistics(credit.selected, decay=config.trace_decay, mask_t=mask_t)
            stats["trace_mass"] = (mass.sum(), n_tokens)
            stats["effective_horizon"] = (moment.sum(), mass.sum())
    # token i of a response's n loss tokens lies in quarter ⌊4i/n⌋
    rank = mask_t.cumsum(-1) - 1
    quarter = (4 * rank / mask_t.sum(-1, keepdim=True).clamp(min=1)).floor()
    magnitude = advantage.abs().expand_as(mask_t)
    for q in range(4):
        inside = mask_t * (quarter == q)
        stats[f"abs_advantage/quarter_{q + 1}"] = ((magnitude * inside).sum(), inside.sum())
    return stats


def extra_kl(
    config: CreditConfig,
    credit: Credit,
    *,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    mask_t: torch.Tensor,
) -> torch.Tensor | None:
    """What TRL's KL term lacks to be β Σ_t k3_t / Σ_t M_t over all loss tokens (SPO, Eq. 3): a scalar, or `None`.

    TRL divides it by the number of all loss tokens where it normalises inside the micro-batch, by row or as a whole;
    the losses that divide by `num_items_in_batch` have that number recounted and lack nothing.
    """
    if config.mask_normalizer != "paper" or config.loss_type not in ("grpo", "sapo", "bnpo"):
        return None
    difference = inputs["ref_per_token_logps"] - logp_t
    kl_t = (difference.exp() - difference - 1) * mask_t
    if config.use_bias_correction_kl:
        kl_t = kl_t * (logp_t - old_logp_t if credit.log_weight is None else credit.log_weight).exp()
    if config.loss_type == "bnpo":
        kl, n_all, n_kept = kl_t.sum(), mask_t.sum(), credit.mask.sum()
    else:
        kl, n_all, n_kept = kl_t.sum(-1), mask_t.sum(-1), credit.mask.sum(-1)
    return config.beta * (kl / n_kept.clamp(min=1) - kl / n_all.clamp(min=1)).mean()


def response_hashes(completion_ids: torch.Tensor, *, pad_token_id: int) -> torch.Tensor:
    """One int64 per row of `completion_ids` (B, T), blind to trailing padding and the same on every process."""
    rows = completion_ids.cpu().numpy().astype("<i8")
    hashes = []
    for row in rows:
        used = (row != pad_token_id).nonzero()[0]
        text = row[: used[-1] + 1 if len(used) else 0].tobytes()
        hashes.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True))
    return torch.tensor(hashes, dtype=torch.int64, device=completion_ids.device)


def group_statistics(rewards: torch.Tensor, hashes: torch.Tensor, *, num_generations: int) -> dict[str, float]:
    """Share of groups whose rewards are all equal (no signal) and mean number of different responses per group.

    `rewards` (N,) may hold NaN (no score); `hashes` (N,) int64. Groups are consecutive.
    """
    grouped = rewards.view(-1, num_generations)
    low = grouped.nan_to_num(nan=torch.inf).amin(-1)
    high = grouped.nan_to_num(nan=-torch.inf).amax(-1)
    ordered = hashes.view(-1, num_generations).sort(-1).values
    unique = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1)
    return {
        "groups_without_signal": (high <= low).float().mean().item(),
        "unique_responses": unique.float().mean().item(),
    }
