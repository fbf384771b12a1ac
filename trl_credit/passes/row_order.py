"""Rows of micro-batches: their lengths, the order that needs least padding, and cutting columns that no row needs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..loss import keys
from .prefix_layout import PromptRow


class Span(NamedTuple):
    """Columns of prompt and completion that a row, or several rows together, need."""

    prompt: int
    completion: int


def rows_of(
    prompt_mask: torch.Tensor, completion_mask: torch.Tensor, prompt_ids: torch.Tensor | None = None
) -> tuple[list[PromptRow], bool]:
    """The columns that each row needs. A truncated response that the loss leaves out needs none. One transfer.

    Args:
        prompt_mask, completion_mask (`torch.Tensor`):
            Shapes (B, P) and (B, T).
        prompt_ids (`torch.Tensor`, *optional*):
            Shape (B, P). Without them all prompts count as different.

    Returns:
        The rows, and whether all of them are without holes and have a prompt.
    """
    ends, counts = [], []
    for mask, backwards in ((prompt_mask != 0, True), (completion_mask != 0, False)):
        number = torch.arange(1, mask.size(1) + 1, device=mask.device)
        ends.append((mask * (number.flip(0) if backwards else number)).amax(1))
        counts.append(mask.sum(1))
    numbers = torch.arange(len(prompt_mask), device=prompt_mask.device)
    if prompt_ids is not None:
        numbers = torch.where(prompt_mask != 0, prompt_ids + 1, 0).unique(dim=0, return_inverse=True)[1]
    table = torch.stack([numbers, *ends, *counts], 1).tolist()
    is_whole = all(row[1:3] == row[3:] and row[1] > 0 for row in table)
    return [PromptRow(*row[:3]) for row in table], is_whole


def longest(rows: Sequence[PromptRow]) -> Span:
    """The columns that rows need together, at least one of each kind."""
    return Span(max(1, *(row.prompt for row in rows)), max(1, *(row.response for row in rows)))


def cheapest_order(rows: Sequence[PromptRow], size: int, *, needed: Sequence[bool] | None = None) -> list[int]:
    """The order of rows, in parts of `size`, that needs the fewest tokens: as given, or longest response or row first.

    A part without a `needed` row costs nothing, so rows that are not needed may come together, in front.
    """

    def tokens(order: list[int]) -> int:
        parts = (order[i : i + size] for i in range(0, len(order), size))
        made = ([rows[k] for k in part] for part in parts if needed is None or any(needed[k] for k in part))
        return sum(len(part) * (max(r.prompt for r in part) + max(r.response for r in part)) for part in made)

    places = range(len(rows))
    by_response = sorted(places, key=lambda k: (rows[k].response, rows[k].prompt), reverse=True)
    by_row = sorted(places, key=lambda k: rows[k].prompt + rows[k].response, reverse=True)
    orders = [[*places], by_response, by_row]
    if needed is not None:  # in front, since the last micro-batch of a window may have to be computed in any case
        orders = [sorted(order, key=lambda k: needed[k]) for order in orders] + orders
    return min(orders, key=tokens)


def reordered(batches: Sequence[dict[str, Any]], order: list[int]) -> list[dict[str, Any]]:
    """Micro-batches of the same rows in another order. Entries without rows stay."""
    size, copies = len(order) // len(batches), [dict(batch) for batch in batches]
    if order == list(range(len(order))):
        return copies
    for name, first in batches[0].items():
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            rows = torch.cat([batch[name] for batch in batches])[torch.tensor(order, device=first.device)]
        elif isinstance(first, list):
            every = [x for batch in batches for x in batch[name]]
            rows = [every[k] for k in order]
        else:
            continue
        for i, batch in enumerate(copies):
            batch[name] = rows[i * size : (i + 1) * size]
    return copies


def trimmed(batch: dict[str, Any], span: Span, *, are_columns: bool) -> dict[str, Any]:
    """A copy of a micro-batch, cut to the columns of `span`. `are_columns`: whether type ids are numbers of columns."""
    there = columns_of(batch)
    drop, short = there.prompt - span.prompt, dict(batch)
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        if name.startswith("prompt_"):
            short[name] = value[:, drop:]
        elif name in keys.TYPE_IDS:
            own = value[:, drop : there.prompt + span.completion]
            short[name] = (own - drop).clamp(min=0) if are_columns and name == keys.VISIBLE_UNTIL else own
        elif name not in keys.FORWARD and value.size(1) == there.completion > 1:
            short[name] = value[:, : span.completion]
    return short


def columns_of(batch: dict[str, Any]) -> Span:
    """The columns that a micro-batch has."""
    return Span(batch[keys.PROMPT_IDS].size(1), batch[keys.COMPLETION_IDS].size(1))


def is_by_row(batch: dict[str, Any]) -> bool:
    """Whether every entry of a micro-batch has one item per row, images too."""
    rows = len(batch[keys.PROMPT_IDS])
    sized = [x for x in batch.values() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.dim() > 0)]
    return all(len(x) == rows for x in sized) and all(n == 1 for n in batch.get(keys.NUM_IMAGES) or [])
