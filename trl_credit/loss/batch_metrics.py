"""The metrics of one generation batch: difficulty, groups without signal, lengths."""

import torch

from ..credit.groups import has_difference
from .batch import unpadded


def difficulty_statistics(
    phi: torch.Tensor, advantages: torch.Tensor, *, p_hat: torch.Tensor, prior: float
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Mean weight Φ for A above and below 0, and for prompts harder and easier than the belief, as sums and counts. All
    tensors have one shape: (B,), or (B, T) by token."""
    return {
        f"difficulty_weight/{side}_{sign}": ((phi * (rows & signed)).sum(), (rows & signed).sum())
        for side, rows in (("harder", p_hat < prior), ("easier", p_hat > prior))
        for sign, signed in (("positive", advantages > 0), ("negative", advantages < 0))
    }


def response_hashes(completion_ids: torch.Tensor, *, pad_token_id: int) -> torch.Tensor:
    """One int64 per row of `completion_ids` (B, T), without padding, the same on every process."""
    rows = unpadded(completion_ids, completion_ids != pad_token_id)
    # the hash of a tuple of integers does not depend on the process
    return torch.tensor([hash(tuple(row)) for row in rows], dtype=torch.int64, device=completion_ids.device)


def group_statistics(
    rewards: torch.Tensor, hashes: torch.Tensor, *, num_generations: int, credited: torch.Tensor | None = None
) -> dict[str, float]:
    """Share of groups without signal, and mean number of different responses per group.

    A group has no signal if none of its responses is `credited` (N,), or without `credited` if all its rewards are
    equal. `rewards` (N,) may hold NaN (no score); `hashes` (N,) are int64. Groups are consecutive.
    """
    if credited is None:
        has_signal = has_difference(rewards, num_generations=num_generations)
    else:
        has_signal = credited.view(-1, num_generations).any(-1)
    ordered = hashes.view(-1, num_generations).sort(-1).values
    unique = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1)
    means = torch.stack([(~has_signal).float().mean(), unique.float().mean()]).tolist()
    return dict(zip(("groups_without_signal", "unique_responses"), means, strict=True))


def length_statistics(lengths: list[int], truncated: list[bool]) -> dict[str, float]:
    """TRL's metrics under `completions/` for responses of these lengths (tokens); `truncated` ones did not end."""
    length, ended = torch.tensor(lengths, dtype=torch.float), ~torch.tensor(truncated)
    stats = {"clipped_ratio": (1 - ended.float().sum() / len(lengths)).item()}
    for kind, x in (("length", length), ("terminated_length", length[ended] if ended.any() else torch.zeros(1))):
        stats |= {f"mean_{kind}": x.mean().item(), f"min_{kind}": x.min().item(), f"max_{kind}": x.max().item()}
    return stats
