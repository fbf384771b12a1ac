"""The rows of a micro-batch packed into one, in which every token sees what it saw in its own row.

Shared prompts: the row holds the prompts, each once and without its last token. Behind them come the responses, each
after the last token of its prompt, which predicts its first token. They keep their positions.

Packed sequences: one row after the other, each with its prompt, and no padding between them. Positions start anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from .branches import Branches, Piece
from .flops import Pass


class PromptRow(NamedTuple):
    """A row of a batch.

    Attributes:
        number: Number of its prompt: rows with equal numbers have equal prompts.
        prompt, response: Lengths in tokens.
    """

    number: int
    prompt: int
    response: int


@dataclass(frozen=True)
class Packing:
    """The rows of a micro-batch packed into one.

    Attributes:
        groups: Rows with a response, by prompt.
        padding: Padding tokens, in front of shared prompts and behind packed sequences.
        length: Tokens of the packed row, with padding.
        kept: Tokens at the end for which the head is computed.
        branches: Which token sees which; `None` for packed sequences.
        ends: Lengths of the packed sequences, then of the padding.
    """

    groups: list[list[int]]
    padding: int
    length: int
    kept: int
    branches: Branches | None
    ends: tuple[int, ...] = ()

    @property
    def cost(self) -> Pass:
        """What the pass costs."""
        return Pass(self.length, self.branches.squares() if self.branches else sum(n**2 for n in self.ends), self.kept)


class MicroBatch(NamedTuple):
    """A micro-batch of a batch.

    Attributes:
        places: Numbers of its rows, in their order.
        cost: What the pass over it costs.
        packing: How its rows are packed, `None` for unpacked ones.
    """

    places: list[int]
    cost: Pass
    packing: Packing | None


class Batching(NamedTuple):
    """How the rows of a batch are cut into micro-batches.

    Attributes:
        size: Rows of a micro-batch.
        window: Micro-batches whose rows may be exchanged.
        needed: Rows that need a pass; `None` for all. A micro-batch without one of them costs nothing.
    """

    size: int
    window: int
    needed: Sequence[bool] | None = None


def arranged(
    rows: Sequence[PromptRow],
    batching: Batching,
    *,
    order: Callable[[Sequence[PromptRow], Sequence[bool] | None], Sequence[int]],
    form: Callable[[Sequence[PromptRow]], tuple[Pass, Packing | None]],
) -> list[MicroBatch]:
    """Puts the rows of a batch, given in TRL's order, into micro-batches.

    Args:
        order (`Callable`):
            The order of the rows of a window, given which of them are needed.
        form (`Callable`):
            Cost and packing of a micro-batch.
    """
    batches, needed = [], batching.needed
    for start in range(0, len(rows), batching.size * batching.window):
        part = slice(start, start + batching.size * batching.window)
        places = [start + k for k in order(rows[part], needed and needed[part])]
        for own in (places[i : i + batching.size] for i in range(0, len(places), batching.size)):
            cost, packing = form([rows[k] for k in own])
            is_computed = needed is None or any(needed[k] for k in own)
            batches.append(MicroBatch(own, cost if is_computed else Pass(0, 0, 0), packing))
    return batches


def by_prompt(rows: Sequence[PromptRow]) -> list[int]:
    """Rows ordered by prompt: prompts with most rows first, longest responses first."""
    members = _members(rows, range(len(rows)))
    size = {number: (-len(own), -sum(rows[i].response for i in own)) for number, own in members.items()}
    return sorted(range(len(rows)), key=lambda i: (*size[rows[i].number], rows[i].number, -rows[i].response, i))


def packing_of(rows: Sequence[PromptRow], *, multiple: int = 1) -> Packing | None:
    """Packs the rows of a micro-batch; `None` where no two rows with a response share a prompt.

    Args:
        multiple (`int`, *optional*, defaults to 1):
            The length is rounded up to a multiple of it.
    """
    groups = list(_members(rows, [i for i, row in enumerate(rows) if row.response > 0]).values())
    if all(len(group) == 1 for group in groups):
        return None
    kept = sum(rows[i].response + 1 for group in groups for i in group)
    needed = kept + sum(rows[group[0]].prompt - 1 for group in groups)
    # at least one token in front: TRL asks for one more logit than it keeps
    length = -(-max(needed, kept + 1) // multiple) * multiple
    return Packing(groups, length - needed, length, kept, _branches(groups, rows, length - needed))


def packed_sequences(rows: Sequence[PromptRow], *, multiple: int = 1) -> Packing | None:
    """Packs the rows of a micro-batch as sequences; `None` where none has a response. [`packing_of`] has `multiple`."""
    groups = [[i] for i, row in enumerate(rows) if row.response > 0]
    if not groups:
        return None
    ends = [rows[i].prompt + rows[i].response for (i,) in groups]
    length = -(-sum(ends) // multiple) * multiple
    padding = length - sum(ends)
    kept = length - rows[groups[0][0]].prompt
    return Packing(groups, padding, length, kept, None, (*ends, *[padding] * (padding > 0)))


def _members(rows: Sequence[PromptRow], which: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i in which:
        members.setdefault(rows[i].number, []).append(i)
    return members


def _branches(groups: Sequence[Sequence[int]], rows: Sequence[PromptRow], padding: int) -> Branches:
    """Branches of padding, prompts without their last token, and all responses, each after that token."""
    sizes, pieces, after = [padding] * (padding > 0), [], []
    for group in groups:
        after.append((len(sizes),) * (rows[group[0]].prompt > 1))
        sizes += [rows[group[0]].prompt - 1] * len(after[-1])
        pieces += [Piece((), [after[-1]])] * len(after[-1])
    for before, group in zip(after, groups, strict=True):
        pieces.append(Piece(before, [(len(sizes) + i,) for i in range(len(group))]))
        sizes += [rows[i].response + 1 for i in group]
    return Branches(sizes, pieces)


@dataclass(frozen=True)
class Layout:
    """Maps B rows of P + T columns to a packed row of L tokens, and its results back.

    Attributes:
        packing: The packing, which has K tokens at the end for which the head is computed.
        source: Which of the B · (P + T) columns each token comes from, shape (1, L); 0 at padding.
        mask: Shape (1, L), 0 at padding; of packed sequences also at prompts, which need no probabilities.
        place: Index of each response token among the last K tokens of the packed row, shape (B, T); −1 at padding.
    """

    packing: Packing
    source: torch.Tensor
    mask: torch.Tensor
    place: torch.Tensor

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        """Results of a packed pass, shape (1, K, …), as those of the rows, shape (B, T, …); 0 at padding."""
        return zero_where(self.place < 0, x.squeeze(0)[self.place.clamp(min=0)])


def zero_where(outside: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`x`, shape (B, T, …), with 0 where `outside`, shape (B, T), is true."""
    return x.masked_fill(outside.view(*outside.shape, *[1] * (x.dim() - 2)), 0)


def layout_of(
    packing: Packing, rows: Sequence[PromptRow], *, widths: tuple[int, int], device: torch.device | str = "cpu"
) -> Layout:
    """The layout of rows with prompts padded to P on the left and responses to T on the right: `widths`."""
    (prompt_width, width), length = widths, packing.length
    source, mask = np.zeros((2, 1, length), dtype=np.int64)
    place = np.full((len(rows), width), -1, dtype=np.int64)
    is_shared = packing.branches is not None
    at = packing.padding if is_shared else 0
    for group in packing.groups if is_shared else ():
        first, before = group[0] * (prompt_width + width) + prompt_width, rows[group[0]].prompt - 1
        source[0, at : at + before] = np.arange(first - before - 1, first - 1)
        mask[0, at : at + before] = 1
        at += before
    for i in (i for group in packing.groups for i in group):
        # the last token of a shared prompt, or all of it, and the response
        first, prompt, response = i * (prompt_width + width) + prompt_width, rows[i].prompt, rows[i].response
        before = 1 if is_shared else prompt
        source[0, at : at + before + response] = np.arange(first - before, first + response)
        mask[0, at + before * (not is_shared) : at + before + response] = 1
        place[i, :response] = at + before - (length - packing.kept) + np.arange(response)
        at += before + response
    return Layout(packing, *(torch.from_numpy(x).to(device) for x in (source, mask, place)))
