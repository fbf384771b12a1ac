"""Which tokens of a forward pass see which, as runs of tokens: attention takes them instead of a dense mask."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch


class Piece(NamedTuple):
    """Runs of tokens that see the same earlier tokens: one call of attention.

    Attributes:
        before: The parts that all runs see.
        runs: The parts of each run. Within a run, attention is causal.
    """

    before: tuple[int, ...]
    runs: list[tuple[int, ...]]


@dataclass
class Branches:
    """Branches side by side in the rows of a forward pass. Each branch sees only itself and its ancestors.

    Attributes:
        sizes: Lengths of the parts that the rows are cut into, row after row.
        pieces: Which parts see which. Padding is in none.
    """

    sizes: list[int]
    pieces: list[Piece]
    _masks: dict[tuple, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def were_used(self) -> bool:
        """Whether attention has asked for a mask."""
        return bool(self._masks)

    def tokens(self, parts: Sequence[int]) -> int:
        """Number of tokens of some parts."""
        return sum(self.sizes[part] for part in parts)

    def width(self, piece: Piece) -> int:
        """Number of tokens of a piece's longest run."""
        return max(map(self.tokens, piece.runs))

    def squares(self) -> int:
        """Pairs of tokens that attention computes: in each piece runs are padded to the longest."""
        found = 0
        for piece in self.pieces:
            width = self.width(piece)
            found += len(piece.runs) * width * (self.tokens(piece.before) + width)
        return found

    def mask(self, before: int, width: int, like: torch.Tensor) -> torch.Tensor | None:
        """The mask added to the scores of runs of `width` tokens after `before` others, shape (1, 1, width, before +
        width); `None` where causal attention is enough. All layers of a pass share it."""
        if before == 0:
            return None
        kind, dtype = like.device.type, like.dtype
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # or each layer would copy it
            dtype = torch.get_autocast_dtype(kind)
        key = (before, width, dtype, like.device)
        if key not in self._masks:
            length = before + width
            columns = -(-length // 8) * 8  # or CUDA kernels would copy it in each layer
            low = torch.full((width, columns), -torch.inf, dtype=dtype, device=like.device)
            self._masks[key] = low.triu(before + 1)[None, None, :, :length]
        return self._masks[key]

    def fresh(self) -> "Branches":
        """A copy without masks, so that masks live as long as a pass."""
        return Branches(self.sizes, self.pieces)

    def positions(self, shape: tuple[int, int]) -> torch.Tensor:
        """Number of tokens that each token sees besides itself, in rows of `shape`; 0 at padding."""
        ends = np.cumsum(self.sizes)
        found = np.zeros(shape[0] * shape[1], dtype=np.int64)
        for piece in self.pieces:
            before = self.tokens(piece.before)
            for run in piece.runs:
                at = before
                for part in run:
                    found[ends[part] - self.sizes[part] : ends[part]] = at + np.arange(self.sizes[part])
                    at += self.sizes[part]
        return torch.from_numpy(found.reshape(shape))


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
