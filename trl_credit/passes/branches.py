"""Which tokens of a forward pass see which, as runs of tokens: attention takes them instead of a dense mask.

They are gathered, and each call of attention takes its runs together. The number of kernels depends on the calls, not
on the runs: one gather of queries, keys and values each, one of the results, and in each call the keys and values
before its runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention


# types of device; those of AMD, of the same type, align "causal" with the first key instead of the last
HAVE_KERNELS = {"cuda"} if torch.version.hip is None else set()
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


class Places(NamedTuple):
    """Rows to take from a tensor, shape (n,), and which of them are zeros instead, shape (m,)."""

    index: torch.Tensor
    missing: torch.Tensor

    @classmethod
    def of(cls, places: np.ndarray, device: torch.device) -> "Places":
        """Takes nothing where a place is −1."""
        return cls(*(torch.from_numpy(x).to(device) for x in (places.clip(min=0), np.flatnonzero(places < 0))))

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes (m, heads, size) → (n, heads, size)."""
        return x.index_select(0, self.index).index_fill_(0, self.missing, 0.0)


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
        self.mask_of = cache(causal_mask)  # all layers have the same masks

    def attention(
        self, plain: Callable[..., tuple], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
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
                output = plain(*(x.transpose(1, 2) for x in (queries, keys, values)), None, **kwargs)[0]
            else:
                # an expanded dimension adds up its gradients in a fixed order, and places are indexed once for all runs
                share = (-1, call.runs // len(before), -1, -1, -1)
                seen = (x[before].unsqueeze(1).expand(share).flatten(0, 1) for x in flat[1:])
                keys, values = (torch.cat(pair, dim=1) for pair in zip(seen, (keys, values), strict=True))
                queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
                output = lower_right_attention(plain, queries, keys, values, mask_of=self.mask_of, **kwargs)
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


def lower_right_attention(
    plain: Callable[..., tuple],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask_of: Callable[..., torch.Tensor],
    **kwargs: Any,
) -> torch.Tensor:
    """Causal attention of the last w of n tokens: query i sees the keys up to n − w + i.

    NVIDIA's GPUs have kernels for it, which make no mask. Elsewhere it takes an additive mask. Shapes
    (B, heads, w, size) and (B, heads or fewer, n, size) → (B, w, heads, size).

    Args:
        plain (`Callable`):
            transformers' `sdpa` attention, `(query, key, value, mask, **kwargs)`, where no kernel works without a mask.
        mask_of (`Callable`):
            [`causal_mask`], cached for the layers of a pass.
        **kwargs:
            Arguments that a layer gives to its attention.
    """
    kind, dropout = query.device.type, kwargs.get("dropout", 0.0)
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and value.dtype != torch.float64:
        # autocast itself would cast in `sdpa`, when the kernel is chosen and the mask is made
        query, key, value = (x.to(torch.get_autocast_dtype(kind)) for x in (query, key, value))
    if kind in HAVE_KERNELS:
        groups, keys, values = query.size(1) // key.size(1), key, value
        # flash kernels take fewer heads of keys than of queries, others do not
        is_flash = can_use_flash_attention(SDPAParams(query, key, value, None, dropout, False, groups > 1))
        if not is_flash and groups > 1:
            keys, values = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        if is_flash or can_use_efficient_attention(SDPAParams(query, keys, values, None, dropout, False, False)):
            bias = causal_lower_right(query.size(2), key.size(2))
            options = {"dropout_p": dropout, "scale": kwargs.get("scaling"), "enable_gqa": is_flash and groups > 1}
            return scaled_dot_product_attention(query, keys, values, attn_mask=bias, **options).transpose(1, 2)
    return plain(query, key, value, mask_of(query.size(2), key.size(2), query.dtype, query.device), **kwargs)[0]


def causal_mask(width: int, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Added to the scores of `width` queries, the last of `length` tokens: shape (1, 1, width, length)."""
    return torch.full((1, 1, width, length), -torch.inf, dtype=dtype, device=device).triu_(length - width + 1)
