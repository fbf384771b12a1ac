"""Attention over branches that lie one after the other in a row, each seeing its own ancestors alone."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn


if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def visible_mask(visible_until: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """Token j sees token i if i ≤ j < visible_until_i, and itself. Shapes (B, L) → (B, L, L), bool.

    With branches laid out depth first, the tokens that see token i are those of its own segment behind it and of all
    segments below it, which stand together: one number per token tells a tree.
    """
    position = torch.arange(visible_until.size(1), device=visible_until.device)
    j, i = position.view(1, -1, 1), position.view(1, 1, -1)
    seen = (i <= j) & (j < visible_until.unsqueeze(1)) & mask_t.bool().unsqueeze(1)
    return seen | (i == j)


def visible_blocks(visible_until: torch.Tensor, *, mask_t: torch.Tensor, size: int = 128) -> "BlockMask":
    """[`visible_mask`] for FlexAttention, without a tensor of shape (L, L): which blocks of `size` tokens see which.

    A block sees an earlier one if some token of that is visible beyond its own first token, and all of it if all are
    visible up to its end. Shapes (B, L).
    """
    from torch.nn.attention.flex_attention import BlockMask

    rows, length = visible_until.shape
    n, device = -(-length // size), visible_until.device
    until = torch.nn.functional.pad(visible_until * mask_t.bool(), (0, n * size - length)).view(rows, n, size)
    first = torch.arange(n, device=device) * size
    last = (first + size).clamp(max=length)
    q, kv = torch.arange(n, device=device).view(1, -1, 1), torch.arange(n, device=device).view(1, 1, -1)
    seen = (kv == q) | ((kv < q) & (until.amax(-1).unsqueeze(1) > first.view(1, -1, 1)))
    whole = (kv < q) & (until.amin(-1).unsqueeze(1) >= last.view(1, -1, 1))

    def packed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Number and places of the blocks that are seen by each, of shape (B, 1, n) and (B, 1, n, n)."""
        places = blocks.int().argsort(dim=-1, descending=True, stable=True)
        return blocks.sum(-1).int().unsqueeze(1), places.int().unsqueeze(1)

    ends = until.reshape(rows, -1)

    def sees(row: torch.Tensor, head: torch.Tensor, j: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return ((i <= j) & (j < ends[row, i])) | (i == j)

    found = (*packed(seen & ~whole), *packed(whole))
    return BlockMask.from_kv_blocks(*found, BLOCK_SIZE=size, mask_mod=sees, seq_lengths=(length, length))


@contextlib.contextmanager
def tree_attention(
    model: nn.Module,
    *,
    implementation: str,
    visible_until: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> Iterator[None]:
    """Within it, forward passes are of branches side by side.

    Args:
        model (`nn.Module`):
            May be wrapped.
        implementation (`str`):
            Of its attention, "sdpa", "eager" or "flex_attention".
        visible_until (`torch.Tensor`, *optional*):
            Shape (B, L). Defaults to the `token_type_ids` of each pass, which are taken from it.
        position_ids (`torch.Tensor`, *optional*):
            Shape (B, L). A token's position defaults to the number of tokens it sees before itself: that which it had
            in its own response without padding.
    """

    def replace(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        until = kwargs.pop("token_type_ids") if visible_until is None else visible_until
        if implementation == "flex_attention" and position_ids is not None:
            kwargs["position_ids"] = position_ids
            kwargs["attention_mask"] = visible_blocks(until, mask_t=kwargs["attention_mask"])
            return args, kwargs
        seen = visible_mask(until, mask_t=kwargs["attention_mask"])
        kwargs["position_ids"] = seen.sum(-1) - 1 if position_ids is None else position_ids
        kwargs["attention_mask"] = seen.unsqueeze(1)
        if implementation == "eager":  # which adds its mask to the scores
            dtype = next(module.parameters()).dtype
            low = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=seen.device)
            kwargs["attention_mask"] = torch.where(seen.unsqueeze(1), torch.zeros_like(low), low)
        return args, kwargs

    handle = model.register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def branch_problem(config: Any, *, known: tuple[str, ...] = ("sdpa", "eager")) -> str | None:
    """Why a model of this configuration cannot attend to branches side by side, `None` if it can by one of the `known`
    implementations."""
    text = config.get_text_config()
    implementation = getattr(text, "_attn_implementation", None)
    if implementation not in known:
        return (
            f"needs attention with a mask of any shape, and attn_implementation={implementation!r} has none: set "
            "model_init_kwargs={'attn_implementation': 'sdpa'}"
        )
    slides = getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    kinds = set(getattr(text, "layer_types", None) or ["sliding_attention" if slides else "full_attention"])
    if kinds != {"full_attention"}:
        return f"needs full attention in every layer, and {text.model_type!r} has {', '.join(sorted(kinds))}"
    return None


def check_tree_attention(config: Any) -> str:
    """Returns the attention implementation of a model's configuration.

    Raises:
        ValueError: not every layer of the model attends to all tokens, or its implementation takes no such mask.
    """
    if (problem := branch_problem(config)) is not None:
        way = ", or" if ": set " in problem else ": set"
        raise ValueError(f"tree_rows='packed' {problem}{way} tree_rows='paths'.")
    return config.get_text_config()._attn_implementation
