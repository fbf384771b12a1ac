"""Small operations on the batches that TRL makes, none of which needs TRL."""

from typing import Any

import torch


def loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Shape (B, T), 1 for the tokens that the loss sees."""
    mask_t = batch["completion_mask"]
    return mask_t * batch["tool_mask"] if batch.get("tool_mask") is not None else mask_t


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


def known_or(x: torch.Tensor | None, default: torch.Tensor) -> torch.Tensor:
    return default if x is None else torch.where(x.isnan(), default, x)


def replace_last(logged: Any, values: list) -> None:
    """Replaces the last entries of one of TRL's logs, a deque that may hold fewer of them than there are."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)
