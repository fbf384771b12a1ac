"""Attention over branches that lie one after the other in a row, each seeing its own ancestors alone."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def visible_mask(visible_until: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """Token j sees token i if i ≤ j < visible_until_i, and itself. Shapes (B, L) → (B, L, L), bool.

    With branches laid out depth first, the tokens that see token i are those of its own segment behind it and of all
    segments below it, which stand together: one number per token tells a tree.
    """
    position = torch.arange(visible_until.size(1), device=visible_until.device)
    j, i = position.view(1, -1, 1), position.view(1, 1, -1)
    seen = (i <= j) & (j < visible_until.unsqueeze(1)) & mask_t.bool().unsqueeze(1)
    return seen | (i == j)


@contextlib.contextmanager
def tree_attention(model: nn.Module, *, implementation: str) -> Iterator[None]:
    """Within it, `token_type_ids` of a forward pass are `visible_until`, and become attention mask and positions.

    A token's position is the number of tokens it sees before itself: that which it had in its own response.
    `implementation` is the model's, "sdpa" or "eager"; `model` may be wrapped.
    """

    def replace(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        visible_until = kwargs.pop("token_type_ids")
        seen = visible_mask(visible_until, mask_t=kwargs["attention_mask"])
        kwargs["position_ids"] = seen.sum(-1) - 1
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


def check_tree_attention(config: Any) -> str:
    """Returns the attention implementation of a model's configuration.

    Raises:
        ValueError: not every layer of the model attends to all tokens, or its implementation takes no such mask.
    """
    text = config.get_text_config()
    implementation = getattr(text, "_attn_implementation", None)
    if implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"tree_rows='packed' needs attention with a mask of any shape, and attn_implementation={implementation!r} "
            "has none: set model_init_kwargs={'attn_implementation': 'sdpa'}, or tree_rows='paths'."
        )
    slides = getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    kinds = set(getattr(text, "layer_types", None) or ["sliding_attention" if slides else "full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(
            f"tree_rows='packed' needs full attention in every layer, and {text.model_type!r} has "
            f"{', '.join(sorted(kinds))}: set tree_rows='paths'."
        )
    return implementation
