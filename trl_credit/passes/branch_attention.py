"""Tree attention by runs of tokens: those of [`~trl_credit.passes.branches.Branches`] are gathered, and each call of
attention takes its runs together.

The number of kernels depends on the calls, not on the runs: one gather of queries, keys and values each, one of the
results, and in each call the keys and values before its runs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .branches import Branches, Call
from .causal import CausalMasks, lower_right_attention


class Places(NamedTuple):
    """Rows to take from a tensor, shape (n,), and which of them are zeros instead, shape (m,) or `None`."""

    index: torch.Tensor
    missing: torch.Tensor | None

    @classmethod
    def of(cls, places: np.ndarray, device: torch.device) -> "Places":
        """Takes nothing where a place is −1."""
        index, missing = (torch.from_numpy(x).to(device) for x in (places.clip(min=0), np.flatnonzero(places < 0)))
        return cls(index, missing if len(missing) else None)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes (m, heads, size) → (n, heads, size)."""
        taken = x.index_select(0, self.index)
        return taken if self.missing is None else taken.index_fill_(0, self.missing, 0.0)


class _Moved(torch.autograd.Function):
    """Rows of a tensor at other places, none of them twice.

    The gradient is a gather too. That of `index_select` would add up with atomic operations, that of an index would
    sort the places, in each layer.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Places, back: Places) -> torch.Tensor:
        ctx.back = back
        return there.take(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back.take(gradient), None, None


class BranchLayout:
    """Where the tokens of each call are, for all layers of a pass.

    Args:
        branches ([`Branches`]):
            Which token sees which.
        device (`torch.device`):
            Where the model is.
    """

    def __init__(self, branches: Branches, device: torch.device) -> None:
        self.calls = branches.calls
        self.sizes = [call.runs * call.width for call in self.calls]
        into = np.full(sum(self.sizes), -1)  # place in the rows of each token of the calls, −1 for padding of runs
        out = np.full(sum(branches.sizes), -1)  # and the reverse, −1 for padding of rows
        self.before: list[torch.Tensor | None] = []
        first = 0
        for call in self.calls:
            for run in (run for piece in call.pieces for run in piece.runs):
                own = branches.places(run)
                into[first : first + len(own)] = own
                out[own] = np.arange(first, first + len(own))
                first += call.width
            self.before.append(_before(branches, call, device))
        self.into, self.out = Places.of(into, device), Places.of(out, device)
        self.masks = CausalMasks(max((call.before + call.width for call in self.calls if call.before), default=0))

    def attention(
        self,
        plain: Callable[..., tuple],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **named: Any,
    ) -> torch.Tensor:
        """Shapes (B, heads, L, size) → (B, L, heads, size); 0 at padding. `plain` is transformers' attention."""
        rows, heads, length, _ = query.shape
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
        if not self.calls:
            return value.new_zeros(rows, length, heads, value.size(-1))
        parts = [_Moved.apply(x, self.into, self.out).split(self.sizes) for x in flat]
        outputs = []
        for call, before, *own in zip(self.calls, self.before, *parts, strict=True):
            queries, keys, values = (x.unflatten(0, (call.runs, call.width)) for x in own)
            if before is None:
                output = plain(*(x.transpose(1, 2) for x in (queries, keys, values)), None, **named)[0]
            else:
                # an expanded dimension adds up its gradients in a fixed order, and places are indexed once for all runs
                share = (-1, call.runs // len(before), -1, -1, -1)
                seen = (x[before].unsqueeze(1).expand(share).flatten(0, 1) for x in flat[1:])
                keys, values = (torch.cat(pair, dim=1) for pair in zip(seen, (keys, values), strict=True))
                queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
                output = lower_right_attention(plain, queries, keys, values, masks=self.masks, **named)
            outputs.append(output.flatten(0, 1))
        return _Moved.apply(torch.cat(outputs), self.out, self.into).view(rows, length, heads, -1)


def _before(branches: Branches, call: Call, device: torch.device) -> torch.Tensor | None:
    """Places of what the runs of a call see before themselves: (pieces, tokens) if the pieces have equally many runs,
    else (runs, tokens)."""
    if call.before == 0:
        return None
    places = np.stack([branches.places(piece.before) for piece in call.pieces])
    counts = [len(piece.runs) for piece in call.pieces]
    return torch.from_numpy(places if len(set(counts)) == 1 else np.repeat(places, counts, axis=0)).to(device)
