"""Causal attention of the last w of n tokens: query i sees the keys up to n − w + i.

NVIDIA's GPUs have kernels for it, which make no mask. Elsewhere it takes an additive mask of at most `MOST_BYTES`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention


# types of device; those of AMD, of the same type, align "causal" with the first key instead of the last
HAVE_KERNELS = {"cuda"} if torch.version.hip is None else set()
MOST_BYTES = 64 * 2**20  # of a mask


def lower_right_attention(
    plain: Callable[..., tuple],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    masks: "CausalMasks",
    **named: Any,
) -> torch.Tensor:
    """Shapes (B, heads, w, size) and (B, heads or fewer, n, size) → (B, w, heads, size).

    Args:
        plain (`Callable`):
            transformers' `sdpa` attention, `(query, key, value, mask, **named)`, where no kernel works without a mask.
        masks ([`CausalMasks`]):
            Of the pass.
        **named:
            Arguments that a layer gives to its attention.
    """
    kind, dropout = query.device.type, named.get("dropout", 0.0)
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
            options = {"dropout_p": dropout, "scale": named.get("scaling"), "enable_gqa": is_flash and groups > 1}
            return scaled_dot_product_attention(query, keys, values, attn_mask=bias, **options).transpose(1, 2)
    # by an additive mask, for as many queries at a time as it has rows
    width, before = query.size(2), key.size(2) - query.size(2)
    at_once = max(1, min(width, MOST_BYTES // (2 * masks.most * query.element_size())))
    parts = []
    for start in range(0, width, at_once):
        some = query[:, :, start : start + at_once]
        end = before + start + some.size(2)
        mask = masks.mask(some.size(2), end, query)
        parts.append(plain(some, key[:, :, :end], value[:, :, :end], mask, **named)[0])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class CausalMasks:
    """The masks of a pass, for all its layers and calls: parts of one tensor.

    Args:
        most (`int`):
            The largest n, in tokens.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._whole: torch.Tensor | None = None

    def mask(self, width: int, length: int, like: torch.Tensor) -> torch.Tensor:
        """Added to the scores of `width` queries, the last of `length` tokens: shape (1, 1, width, length)."""
        if self._whole is None or len(self._whole) < width or self._whole.dtype != like.dtype:
            # columns that all rows see, and a square in which a later row sees more: other masks are parts of it
            low = torch.full((width, self.most + width), -torch.inf, dtype=like.dtype, device=like.device)
            self._whole = low.triu_(self.most + 1)
        first = self.most - (length - width)
        return self._whole[None, None, :width, first : first + length]
