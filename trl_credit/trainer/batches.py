"""Small operations on the batches that TRL makes, none of which needs TRL."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor


def loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Shape (B, T), 1 for the tokens that the loss sees."""
    mask_t = batch["completion_mask"]
    return mask_t * batch["tool_mask"] if batch.get("tool_mask") is not None else mask_t


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """The token ids of each row that `mask` keeps, both of shape (B, L)."""
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


def trimmed(batch: dict[str, Any]) -> dict[str, Any]:
    """A copy of a micro-batch without the columns that only other rows of its generation batch need.

    Rows of a tree differ much in length, and TRL pads all of them to the longest.
    """
    drop = batch["prompt_mask"].size(1) - int(batch["prompt_mask"].sum(1).max())
    width, begin = batch["completion_mask"].size(1), batch["prompt_mask"].size(1)
    keep = int(batch["completion_mask"].sum(1).max())
    found = {}
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            value = value[:, drop:]
        elif name == "token_type_ids":
            value = (value[:, drop : begin + keep] - drop).clamp(min=0)
        elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.size(1) == width > 1:
            value = value[:, :keep]
        found[name] = value
    return found


def local(x: torch.Tensor) -> torch.Tensor:
    """The shard of a distributed tensor that is on this process; any other tensor itself."""
    return x.to_local() if isinstance(x, DTensor) else x


def known_or(x: torch.Tensor | None, default: torch.Tensor | None) -> torch.Tensor | None:
    """`x`, with `default` where it is NaN; either may be missing."""
    if x is None or default is None:
        return default if x is None else x
    return torch.where(x.isnan(), default, x)


def segment_ratio(
    old_logp_t: torch.Tensor,
    sampling_logp_t: torch.Tensor,
    *,
    segment_ids: torch.Tensor,
    mode: str,
    low: float | None,
    high: float | None,
) -> torch.Tensor:
    """π_old over the engine's probability, by token or as a product over each segment, truncated or masked to a range.

    TRL's correction for the engine, with the segment in the place of the row: a row may hold several segments, and
    tokens that none of its segments owns. NaN log-probabilities (unknown to the engine) count as no difference.

    Args:
        old_logp_t, sampling_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        segment_ids (`torch.Tensor`):
            Shape (B, T), −1 where a token belongs to no segment.
        mode (`str`):
            "token_truncate", "token_mask", "sequence_truncate" or "sequence_mask", as in TRL.
        low, high (`float` or `None`):
            The range; outside it a ratio is moved to the range (truncate) or made 0 (mask).

    Returns:
        `torch.Tensor`: shape (B, T), 1 where a token belongs to no segment.
    """
    inside = segment_ids >= 0
    difference = torch.where(inside, old_logp_t - sampling_logp_t, 0.0).nan_to_num(nan=0.0)
    if mode.startswith("sequence"):
        index = torch.where(inside, segment_ids, segment_ids.max().clamp(min=0) + 1)
        totals = difference.new_zeros(len(index), int(index.max()) + 1).scatter_add(1, index, difference)
        difference = torch.where(inside, totals.gather(1, index), 0.0)
    ratio = difference.exp()
    if mode.endswith("truncate"):
        return ratio if low is None and high is None else ratio.clamp(min=low, max=high)
    outside = torch.zeros_like(inside)
    if low is not None:
        outside |= ratio < low
    if high is not None:
        outside |= ratio > high
    return ratio.masked_fill(outside & inside, 0.0)


def replace_last(logged: Any, values: list) -> None:
    """Replaces the last entries of one of TRL's logs, a deque that may hold fewer of them than there are."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)
