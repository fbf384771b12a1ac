"""Rows that share a prompt, laid out so that it stands in a forward pass once, and what that costs beside plain rows.

A packed row holds the prompts of a micro-batch, each once and without its last token, and behind them the responses,
each after the last token of its prompt, from which its own first token is predicted. Every token sees what it saw in
its own row, and has the position that it had there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..flops import Pass
from .branches import Branches, Piece


class PromptRow(NamedTuple):
    """A row of a batch.

    Attributes:
        number: Of its prompt: rows of one number have the same.
        prompt, response: Tokens.
    """

    number: int
    prompt: int
    response: int


@dataclass(frozen=True)
class Packing:
    """The rows of a micro-batch in one.

    Attributes:
        groups: Those with a response, by prompt.
        padding: Tokens in front.
        length: Of all, padding included.
        kept: Tokens of responses, at the end, for which the head is computed.
        squares: Pairs of tokens in attention.
        calls: Of attention, in each layer.
    """

    groups: list[list[int]]
    padding: int
    length: int
    kept: int
    squares: int
    calls: int

    @property
    def cost(self) -> Pass:
        """Of the pass."""
        return Pass(self.length, self.squares, self.kept)


@dataclass(frozen=True)
class Arrangement:
    """The rows of a batch in micro-batches.

    Attributes:
        order: Of the rows; each micro-batch takes as many of them as it has.
        costs: Of the passes over the micro-batches.
        packings: Of each, `None` for plain rows.
        is_worth_it: Whether that is to be preferred.
    """

    order: list[int]
    costs: list[Pass]
    packings: list[Packing | None]
    is_worth_it: bool = True


def by_prompt(rows: Sequence[PromptRow]) -> list[int]:
    """An order in which rows of one prompt stand together: those of most rows first, and longest first."""
    members = _members(rows, range(len(rows)))
    size = {number: (-len(own), -sum(rows[i].response for i in own)) for number, own in members.items()}
    return sorted(range(len(rows)), key=lambda i: (*size[rows[i].number], rows[i].number, -rows[i].response, i))


def packing_of(rows: Sequence[PromptRow], *, multiple: int = 1) -> Packing | None:
    """The rows of a micro-batch in one; `None` where no two rows with a response have one prompt.

    Args:
        multiple (`int`, *optional*, defaults to 1):
            What the length is rounded up to.
    """
    groups = list(_members(rows, [i for i, row in enumerate(rows) if row.response > 0]).values())
    if all(len(group) == 1 for group in groups):
        return None
    kept = sum(rows[i].response + 1 for group in groups for i in group)
    needed = kept + sum(rows[group[0]].prompt - 1 for group in groups)
    # in front there is at least one token: TRL asks for one more logit than it keeps
    length = -(-max(needed, kept + 1) // multiple) * multiple
    branches = _branches(groups, rows, length - needed)
    return Packing(groups, length - needed, length, kept, branches.squares(), len(branches.pieces))


def _members(rows: Sequence[PromptRow], which: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i in which:
        members.setdefault(rows[i].number, []).append(i)
    return members


def _branches(groups: Sequence[Sequence[int]], rows: Sequence[PromptRow], padding: int) -> Branches:
    """Of padding, the prompts without their last tokens, and behind them all responses, each after that token."""
    sizes, pieces, after = [padding] * (padding > 0), [], []
    for group in groups:
        before = (len(sizes),) * (rows[group[0]].prompt > 1)
        sizes += [rows[group[0]].prompt - 1] * len(before)
        pieces += [Piece((), [before])] * len(before)
        after.append((before, group))
    for before, group in after:
        pieces.append(Piece(before, [(len(sizes) + i,) for i in range(len(group))]))
        sizes += [rows[i].response + 1 for i in group]
    return Branches(sizes, pieces)


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a packed pass come from, and where those of the rows are found in it.

    With B rows of P + T columns, and a packed row of L, of which the head is computed for the last K.

    Attributes:
        source: Shape (1, L): which of the B · (P + T) columns a token is; 0 at padding.
        mask: Shape (1, L), 0 at padding.
        branches: Which token sees which.
        place: Shape (B, T): which of the K tokens is that of the row; −1 at padding.
        kept: K.
    """

    source: torch.Tensor
    mask: torch.Tensor
    branches: Branches
    place: torch.Tensor
    kept: int

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        """What a packed pass returned, shape (1, K), for the tokens of the rows, shape (B, T); 0 at padding."""
        return x.flatten()[self.place.clamp(min=0)].masked_fill(self.place < 0, 0.0)


def layout_of(
    packing: Packing, rows: Sequence[PromptRow], *, widths: tuple[int, int], device: torch.device | str = "cpu"
) -> Layout:
    """The layout of rows that are padded to `widths`: P on the left, and T on the right."""
    (prompt_width, width), length = widths, packing.length
    source, mask = np.zeros((2, 1, length), dtype=np.int64)
    place = np.full((len(rows), width), -1, dtype=np.int64)
    mask[:, packing.padding :] = 1
    at = packing.padding
    for group in packing.groups:
        first = group[0] * (prompt_width + width) + prompt_width
        before = rows[group[0]].prompt - 1
        source[0, at : at + before] = np.arange(first - before - 1, first - 1)
        at += before
    for i in (i for group in packing.groups for i in group):
        # the last token of the prompt, and the response
        first, response = i * (prompt_width + width) + prompt_width, rows[i].response
        source[0, at : at + response + 1] = np.arange(first - 1, first + response)
        place[i, :response] = at + 1 - (length - packing.kept) + np.arange(response)
        at += response + 1
    found = (torch.from_numpy(x).to(device) for x in (source, mask))
    branches = _branches(packing.groups, rows, packing.padding)
    return Layout(*found, branches, torch.from_numpy(place).to(device), packing.kept)
