"""Which tokens of a forward pass see which, as runs of tokens: attention takes them instead of a dense mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch


MERGED = 1.25  # most pairs of tokens of a shared call, relative to those of separate calls


class Piece(NamedTuple):
    """Runs of tokens that see the same earlier tokens.

    Attributes:
        before: The parts that all runs see.
        runs: The parts of each run. Within a run, attention is causal.
    """

    before: tuple[int, ...]
    runs: list[tuple[int, ...]]


class Call(NamedTuple):
    """Pieces with equally many tokens before their runs: one call of attention in each layer.

    Attributes:
        pieces: At least one.
        before: Tokens before each run.
        runs, width: Number of runs, and tokens of the longest, to which the others are padded.
    """

    pieces: list[Piece]
    before: int
    runs: int
    width: int

    @property
    def squares(self) -> int:
        """Pairs of tokens that attention computes."""
        return self.runs * self.width * (self.before + self.width)


@dataclass
class Branches:
    """Branches of trees in the rows of a forward pass. Each branch sees only itself and its ancestors.

    Attributes:
        sizes: Lengths of the parts that the rows are cut into, row after row.
        pieces: Which parts see which. Padding is in none.
    """

    sizes: list[int]
    pieces: list[Piece]

    def tokens(self, parts: Sequence[int]) -> int:
        """Number of tokens of some parts."""
        return sum(self.sizes[part] for part in parts)

    @cached_property
    def calls(self) -> list[Call]:
        """The calls of attention. Pieces share one if that adds at most a quarter to their pairs of tokens."""
        alone = [Call([p], self.tokens(p.before), len(p.runs), max(map(self.tokens, p.runs))) for p in self.pieces]
        calls: list[Call] = []
        separate = 0  # pairs of the pieces of the last call, if each had its own
        for call in sorted(alone, key=lambda call: (call.before, call.width)):
            if calls and (last := calls[-1]).before == call.before:
                both = Call(last.pieces + call.pieces, call.before, last.runs + call.runs, call.width)
                if both.squares <= MERGED * (separate + call.squares):
                    calls[-1], separate = both, separate + call.squares
                    continue
            calls.append(call)
            separate = call.squares
        return calls

    def squares(self) -> int:
        """Pairs of tokens that attention computes."""
        return sum(call.squares for call in self.calls)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each part starts, counted through all rows, and where the last one ends."""
        return np.cumsum([0, *self.sizes])

    def places(self, parts: Sequence[int]) -> np.ndarray:
        """The places of the tokens of some parts, counted through all rows."""
        return np.concatenate([np.arange(self.starts[part], self.starts[part + 1]) for part in parts])

    def positions(self, shape: tuple[int, int]) -> torch.Tensor:
        """Number of tokens that each token sees besides itself, in rows of `shape`; 0 at padding."""
        numbers = np.zeros(shape[0] * shape[1], dtype=np.int64)
        for before, run in ((piece.before, run) for piece in self.pieces for run in piece.runs):
            numbers[self.places(run)] = self.tokens(before) + np.arange(self.tokens(run))
        return torch.from_numpy(numbers.reshape(shape))


def branches_of(visible_until: torch.Tensor, *, mask_t: torch.Tensor) -> Branches:
    """Branches of rows that are laid out depth first, see [`~trl_credit.passes.attention.visible_mask`]. One transfer.

    A run starts where some earlier token is no longer seen. Parts are cut there and where `visible_until` changes.
    Shapes (B, L).
    """
    until_r, is_real_r = torch.stack([visible_until, mask_t.to(visible_until.dtype)]).cpu().numpy()
    sizes: list[int] = []
    runs: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for until, is_real in zip(until_r, is_real_r != 0, strict=True):
        length = len(until)
        if not is_real.any():
            sizes.append(length)
            continue
        first, last = int(is_real.argmax()), length - int(is_real[::-1].argmax())
        ends = until[first:last]
        starts = sorted({first, *(int(x) for x in np.unique(ends) if first < x < last)})
        changes = (first + 1 + np.flatnonzero(np.diff(ends))).tolist()
        cuts = sorted({0, first, *starts, *changes, last, length})
        inside = [(len(sizes) + i, begin) for i, begin in enumerate(cuts) if first <= begin < last]
        sizes += np.diff(cuts).tolist()
        for start, stop in zip(starts, [*starts[1:], last], strict=True):
            before = tuple(part for part, begin in inside if begin < start < until[begin])
            own = tuple(part for part, begin in inside if start <= begin < stop)
            runs.setdefault(before, []).append(own)
    return Branches(sizes, [Piece(before, own) for before, own in runs.items()])
