"""The rows of micro-batches: how long they are, in which order they need least padding, and columns that none needs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..rollouts.shared_prefix import PromptRow
from .batches import FORWARD_KEYS


TYPE_IDS = ("token_type_ids", "mm_token_type_ids")  # which have the columns of prompt and completion


class Span(NamedTuple):
    """Columns of prompt and completion that a row needs, or rows together."""

    prompt: int
    completion: int


def rows_of(
    prompt_mask: torch.Tensor, completion_mask: torch.Tensor, *, prompt_ids: torch.Tensor | None = None
) -> tuple[list[PromptRow], bool]:
    """The columns that each row needs: up to the first, and from the last one on, that are 0 in all others.

    The response of a truncated row that the loss leaves out needs none. One transfer.

    Args:
        prompt_mask, completion_mask (`torch.Tensor`):
            Shapes (B, P) and (B, T).
        prompt_ids (`torch.Tensor`, *optional*):
            Shape (B, P). Without them no two rows have the same prompt.

    Returns:
        Rows, and whether none has a hole, nor an empty prompt.
    """
    ends, masks = [], ((prompt_mask, True), (completion_mask, False))
    for mask, backwards in masks:
        number = torch.arange(1, mask.size(1) + 1, device=mask.device)
        ends.append(((mask != 0) * (number.flip(0) if backwards else number)).amax(1))
    numbers = torch.arange(len(prompt_mask), device=prompt_mask.device)
    if prompt_ids is not None:
        known = torch.where(prompt_mask != 0, prompt_ids + 1, 0)
        numbers = known.unique(dim=0, return_inverse=True)[1]
    counts = [(mask != 0).sum(1) for mask, _ in masks]
    table = torch.stack([numbers, *ends, *counts], 1).tolist()
    is_whole = all(row[1:3] == row[3:] and row[1] > 0 for row in table)
    return [PromptRow(*row[:3]) for row in table], is_whole


def cheapest_order(spans: Sequence[Span], size: int, *, needed: Sequence[bool] | None = None) -> list[int]:
    """Rows in parts of `size`, longest first: by response or by row, whichever needs fewer tokens, if fewer at all.

    Parts without a row that is `needed` need none: rows that are not come together in front of the others, if anywhere.
    """

    def tokens(order: list[int]) -> int:
        parts = (order[i : i + size] for i in range(0, len(order), size))
        made = ([spans[k] for k in part] for part in parts if needed is None or any(needed[k] for k in part))
        return sum(len(part) * sum(map(max, zip(*part, strict=True))) for part in made)

    places = range(len(spans))
    by_response = sorted(places, key=lambda k: (spans[k].completion, spans[k].prompt), reverse=True)
    orders = [[*places], by_response, sorted(places, key=lambda k: sum(spans[k]), reverse=True)]
    if needed is not None:  # in front, since the last micro-batch of a window may have to be there for the others
        orders = [sorted(order, key=lambda k: needed[k]) for order in orders] + orders
    return min(orders, key=tokens)


def reordered(batches: Sequence[dict[str, Any]], order: list[int]) -> list[dict[str, Any]]:
    """Micro-batches of the same rows in another order. What is one number for all of them stays."""
    size, found = len(order) // len(batches), [dict(batch) for batch in batches]
    for name, first in batches[0].items():
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            rows = torch.cat([batch[name] for batch in batches])[torch.tensor(order, device=first.device)]
        elif isinstance(first, list):
            every = [x for batch in batches for x in batch[name]]
            rows = [every[k] for k in order]
        else:
            continue
        for i, batch in enumerate(found):
            batch[name] = rows[i * size : (i + 1) * size]
    return found


def trimmed(batch: dict[str, Any], span: Span, *, are_columns: bool) -> dict[str, Any]:
    """A copy of a micro-batch whose prompts and completions have the columns of `span` alone."""
    there = columns_of(batch)
    drop, found = there.prompt - span.prompt, dict(batch)
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        if name.startswith("prompt_"):
            found[name] = value[:, drop:]
        elif name in TYPE_IDS:
            columns = slice(drop, there.prompt + span.completion)
            found[name] = type_ids(value, drop, columns, are_columns=are_columns and name == "token_type_ids")
        elif name not in FORWARD_KEYS and value.size(1) == there.completion > 1:
            found[name] = value[:, : span.completion]
    return found


def columns_of(batch: dict[str, Any]) -> Span:
    """Those that there are."""
    return Span(batch["prompt_ids"].size(1), batch["completion_ids"].size(1))


def type_ids(ids: torch.Tensor, drop: int, columns: slice, *, are_columns: bool) -> torch.Tensor:
    return (ids[:, columns] - drop).clamp(min=0) if are_columns else ids[:, columns]


def is_by_row(batch: dict[str, Any]) -> bool:
    """Whether all that a micro-batch holds has one entry per row, images too."""
    rows = len(batch["prompt_ids"])
    sized = [x for x in batch.values() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.dim() > 0)]
    return all(len(x) == rows for x in sized) and all(n == 1 for n in batch.get("num_images") or [])
