"""Rows that share a prompt, laid out so that it stands in a forward pass once, and what that costs beside plain rows.

A packed row holds a prompt, and behind it the responses to it, one after the other: the first directly, each other one
behind a copy of the prompt's last token, from which its own first token is predicted. Every token sees what it saw in
its own row, and has the position that it had there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..flops import Cost
from .packing import PACKED_LENGTH


class PromptRow(NamedTuple):
    """A row of a batch.

    Attributes:
        number: Of its prompt: rows of one number have the same.
        prompt, response: Tokens.
    """

    number: int
    prompt: int
    response: int


class Shape(NamedTuple):
    """Of a forward pass: rows of `length` tokens, for the last `kept` of which the head is computed."""

    rows: int
    length: int
    kept: int

    def flops(self, cost: Cost) -> float:
        """What the pass costs."""
        return cost.forward(self.rows * self.length, self.rows * self.length**2, self.rows * self.kept)


def cost_of(config: Any) -> Cost | None:
    """Of a decoder, by its configuration; `None` where that does not say how large its layers are."""
    text = config.get_text_config()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if any(not isinstance(getattr(text, name, None), int) for name in names):
        return None
    hidden, inner, layers, heads, vocabulary = (getattr(text, name) for name in names)
    size = getattr(text, "head_dim", None) or hidden // heads
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    weights = 2 * hidden * size * (heads + of_keys) + 3 * hidden * inner
    return Cost.of_sizes(matrix=layers * weights, layers=layers, attention=heads * size, head=hidden * vocabulary)


@dataclass(frozen=True)
class Packing:
    """Which rows of a micro-batch stand in which packed row: packed row → prompts → rows of that prompt."""

    rows: list[list[list[int]]]
    shape: Shape


@dataclass(frozen=True)
class Arrangement:
    """The rows of a batch in micro-batches.

    Attributes:
        order: Of the rows; each micro-batch takes as many of them as it has.
        shapes: Of the passes over the micro-batches.
        packings: Of each, `None` for plain rows.
        is_worth_it: Whether that is to be preferred.
    """

    order: list[int]
    shapes: list[Shape]
    packings: list[Packing | None]
    is_worth_it: bool = True


def by_prompt(rows: Sequence[PromptRow]) -> list[int]:
    """An order in which rows of one prompt stand together: those of most rows first, and longest first."""
    members = _members(rows, range(len(rows)))
    size = {number: (-len(own), -sum(rows[i].response for i in own)) for number, own in members.items()}
    return sorted(range(len(rows)), key=lambda i: (*size[rows[i].number], rows[i].number, -rows[i].response, i))


def packing_of(rows: Sequence[PromptRow], *, cost: Cost, multiple: int = 1) -> Packing | None:
    """The cheapest packing of a micro-batch, by how many packed rows the responses to a prompt are dealt out to.

    None of its rows is longer than [`PACKED_LENGTH`], unless the longest plain row is; `None` where no two rows with a
    response have one prompt.

    Args:
        multiple (`int`, *optional*, defaults to 1):
            What lengths are rounded up to.
    """
    members = _members(rows, [i for i, row in enumerate(rows) if row.response > 0])
    most = max(map(len, members.values()), default=0)
    limit = max([PACKED_LENGTH, *(row.prompt + row.response for row in rows)])
    found = [_packed(rows, members, parts, multiple) for parts in range(1, most)]
    found = [packing for packing in found if packing.shape.length <= limit]
    return min(found, key=lambda packing: packing.shape.flops(cost), default=None)


def _members(rows: Sequence[PromptRow], which: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i in which:
        members.setdefault(rows[i].number, []).append(i)
    return members


def _packed(rows: Sequence[PromptRow], members: dict[int, list[int]], parts: int, multiple: int) -> Packing:
    """With the responses to each prompt in `parts` packed rows, or one each where they are fewer."""
    groups = []
    for own in members.values():
        share = -(-len(own) // min(parts, len(own)))
        groups += [own[i : i + share] for i in range(0, len(own), share)]

    def length(group: list[int]) -> int:
        return rows[group[0]].prompt + sum(rows[i].response for i in group) + len(group) - 1

    groups.sort(key=length, reverse=True)
    capacity = -(-length(groups[0]) // multiple) * multiple
    packed: list[list[list[int]]] = []
    left: list[int] = []
    for group in groups:  # the first row that has room: short ones stand beside each other
        place = next((k for k, room in enumerate(left) if room >= length(group)), len(left))
        if place == len(left):
            packed.append([])
            left.append(capacity)
        packed[place].append(group)
        left[place] -= length(group)
    kept = capacity - min(rows[row[0][0]].prompt for row in packed)
    return Packing(packed, Shape(len(packed), capacity, kept))


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a packed pass come from, and where those of the rows are found in it.

    With B rows of P + T columns, and R packed rows of L, of which the head is computed for the last K.

    Attributes:
        source: Shape (R, L): which of the B · (P + T) columns a token is; 0 at padding.
        mask: Shape (R, L), 0 at padding.
        visible_until: Shape (R, L), see [`~trl_credit.rollouts.attention.visible_mask`].
        place: Shape (B, T): which of the R · K tokens is that of the row; −1 at padding.
        kept: K.
    """

    source: torch.Tensor
    mask: torch.Tensor
    visible_until: torch.Tensor
    place: torch.Tensor
    kept: int

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        """What a packed pass returned, shape (R, K), for the tokens of the rows, shape (B, T); 0 at padding."""
        return x.flatten()[self.place.clamp(min=0)].masked_fill(self.place < 0, 0.0)


def layout_of(
    packing: Packing, rows: Sequence[PromptRow], *, widths: tuple[int, int], device: torch.device | str = "cpu"
) -> Layout:
    """The layout of rows that are padded to `widths`: P on the left, and T on the right."""
    (prompt_width, width), shape = widths, packing.shape
    columns = prompt_width + width
    source, mask, until = np.zeros((3, shape.rows, shape.length), dtype=np.int64)
    place = np.full((len(rows), width), -1, dtype=np.int64)
    before = shape.length - shape.kept
    for k, groups in enumerate(packing.rows):
        at = 0
        for group in groups:
            prompt, begin = rows[group[0]].prompt, at
            at += prompt
            source[k, begin:at] = group[0] * columns + np.arange(prompt_width - prompt, prompt_width)
            for i in group:
                if i != group[0]:
                    source[k, at] = i * columns + prompt_width - 1
                response, start = rows[i].response, at + (i != group[0])
                source[k, start : start + response] = i * columns + prompt_width + np.arange(response)
                place[i, :response] = k * shape.kept + start - before + np.arange(response)
                until[k, at : start + response] = start + response
                at = start + response
                if i == group[0]:  # the other branches have their own copy of the last token
                    until[k, begin + prompt - 1] = at
            until[k, begin : begin + prompt - 1] = at
            mask[k, begin:at] = 1
    found = (torch.from_numpy(x).to(device) for x in (source, mask, until, place))
    return Layout(*found, kept=shape.kept)
