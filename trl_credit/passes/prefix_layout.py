"""The rows of a micro-batch packed into one, in which every token sees what it saw in its own row.

Shared prompts: the row holds the prompts, each once and without its last token. Behind them come the responses, each
after the last token of its prompt, which predicts its first token. They keep their positions.

Packed sequences: one row after the other, each with its prompt, and no padding between them. Positions start anew.
"""

from collections.abc import Callable, Sequence
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


class Packing(NamedTuple):
    """The rows of a micro-batch packed into one.

    Attributes:
        parts: What it holds, in order: a row, and which of its tokens, counted from the first one of its response.
            The tokens of its prompt have negative numbers.
        length: Tokens of the packed row, with padding: in front of shared prompts and behind packed sequences.
        kept: Tokens at the end for which the head is computed.
        branches: Which token sees which; `None` for packed sequences.
    """

    parts: list[tuple[int, range]]
    length: int
    kept: int
    branches: Branches | None

    @property
    def padding(self) -> int:
        """Padding tokens."""
        return self.length - sum(len(tokens) for _, tokens in self.parts)

    @property
    def ends(self) -> list[int]:
        """Lengths of the packed sequences, then of the padding."""
        return [len(tokens) for _, tokens in self.parts] + [self.padding] * (self.padding > 0)

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
    prompts = [(group[0], range(-rows[group[0]].prompt, -1)) for group in groups]
    responses = [(i, range(-1, rows[i].response)) for group in groups for i in group]
    before, kept = (sum(len(tokens) for _, tokens in parts) for parts in (prompts, responses))
    # at least one token in front: TRL asks for one more logit than it keeps
    length = -(-max(before + kept, kept + 1) // multiple) * multiple
    # padding, prompts without their last token, and all responses, each after that token
    sizes = [length - before - kept, *(len(tokens) for _, tokens in prompts + responses)]
    pieces = [Piece((), [(k,)]) for k in range(1, len(groups) + 1) if sizes[k] > 0]
    first = len(groups) + 1
    for k, group in enumerate(groups, 1):
        pieces.append(Piece((k,), [(first + i,) for i in range(len(group))]))
        first += len(group)
    return Packing(prompts + responses, length, kept, Branches(sizes, pieces))


def packed_sequences(rows: Sequence[PromptRow], *, multiple: int = 1) -> Packing | None:
    """Packs the rows of a micro-batch as sequences; `None` where none has a response. [`packing_of`] has `multiple`."""
    if not (parts := [(i, range(-row.prompt, row.response)) for i, row in enumerate(rows) if row.response > 0]):
        return None
    length = -(-sum(len(tokens) for _, tokens in parts) // multiple) * multiple
    return Packing(parts, length, length + parts[0][1].start, None)


def _members(rows: Sequence[PromptRow], which: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i in which:
        members.setdefault(rows[i].number, []).append(i)
    return members


class Layout(NamedTuple):
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
    at = packing.padding if packing.branches else 0
    for row, part in packing.parts:
        tokens, end = np.arange(part.start, part.stop), at + len(part)
        source[0, at:end] = row * (prompt_width + width) + prompt_width + tokens
        mask[0, at:end] = packing.branches is not None or tokens >= 0
        place[row, tokens[tokens >= 0]] = np.arange(at, end)[tokens >= 0] - (length - packing.kept)
        at = end
    return Layout(packing, *(torch.from_numpy(x).to(device) for x in (source, mask, place)))
