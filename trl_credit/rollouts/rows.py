"""Rows of different lengths as padded tensors."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from .replay import Row


def padded(
    rows: Sequence[Sequence[float]], *, value: float, side: str = "right", width: int | None = None
) -> torch.Tensor:
    """Rows of numbers as a tensor (B, L) of the type of `value` (int64 or float32), which fills the rest.

    L is the length of the longest row, or `width`, which extends it on the right.
    """
    tensors = [torch.tensor(row, dtype=torch.tensor(value).dtype) for row in rows]
    found = pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)
    return found if width is None else pad(found, (0, width - found.size(1)), value=value)


def visible_columns(rows: Sequence[Row], *, prompt_width: int, width: int) -> torch.Tensor:
    """`visible_until` of rows, in the columns of a padded batch: int64, shape (B, P + T).

    TRL passes it to the model as `token_type_ids`, and [`~trl_credit.passes.attention.tree_attention`] turns it into an
    attention mask.
    """
    visible = torch.zeros(len(rows), prompt_width + width, dtype=torch.long)
    for i, row in enumerate(rows):
        left, length = prompt_width - len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        until = row.visible_until or [length] * length
        visible[i, left : left + length] = left + torch.tensor(until)
    return visible
