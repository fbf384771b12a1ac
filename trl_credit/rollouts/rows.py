"""Rows of trees as padded tensors."""

from collections.abc import Sequence

import torch

from .replay import Row


def visible_columns(rows: Sequence[Row], *, prompt_width: int, width: int) -> torch.Tensor:
    """`visible_until` of rows in the columns of a padded batch, shape (B, P + T): what TRL hands to the model as
    `token_type_ids`, and [`~trl_credit.rollouts.attention.tree_attention`] makes a mask of."""
    visible = torch.zeros(len(rows), prompt_width + width, dtype=torch.long)
    for i, row in enumerate(rows):
        left, length = prompt_width - len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        until = row.visible_until or [length] * length
        visible[i, left : left + length] = left + torch.tensor(until)
    return visible


def padded_columns(rows: Sequence[Sequence[int]], *, value: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of rows, padded with `value` on the "left" or the "right", and their mask; both of shape (B, L)."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), value, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        columns = slice(width - len(row), None) if side == "left" else slice(len(row))
        ids[i, columns], mask[i, columns] = torch.tensor(row), 1
    return ids, mask
