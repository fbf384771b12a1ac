"""Calls of attention over branches: their number, their kernels, and the size of their masks."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_credit.passes import causal
from trl_credit.passes.attention import tree_attention
from trl_credit.passes.branches import Branches, Piece
from trl_credit.passes.causal import CausalMasks


def prompts_and_responses(*lengths: int, prompts: int = 2, prompt: int = 5) -> Branches:
    """Prompts of equal length, each with responses of these lengths, in one row."""
    sizes = [prompt] * prompts + list(lengths) * prompts
    pieces = [Piece((), [(k,)]) for k in range(prompts)]
    first = prompts
    for k in range(prompts):
        pieces.append(Piece((k,), [(first + k * len(lengths) + i,) for i in range(len(lengths))]))
    return Branches(sizes, pieces)


def pass_over(model, branches: Branches) -> torch.Tensor:
    """Logits of a row of fixed tokens with these branches."""
    length = sum(branches.sizes)
    ids = 3 + torch.arange(length).view(1, length) % 11
    with tree_attention(model, branches=branches, position_ids=branches.positions((1, length))):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


def logits_and_gradient(model, branches: Branches) -> list[torch.Tensor]:
    logits = pass_over(model, branches)
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


def tiny(path: str, dtype: torch.dtype = torch.float64):
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").to(dtype)


def test_pieces_with_equally_many_tokens_before_them_share_a_call():
    found = prompts_and_responses(7, 6, 8).calls
    assert [(len(call.pieces), call.before, call.runs, call.width) for call in found] == [(2, 0, 2, 5), (2, 5, 6, 8)]
    # but not a prompt of 100 tokens with one of 5, which would be padded to 100
    uneven = Branches([5, 100], [Piece((), [(0,)]), Piece((), [(1,)])]).calls
    assert [(call.runs, call.width) for call in uneven] == [(1, 5), (1, 100)]
    pieces = [Piece((), [(k,)]) for k in range(40)]
    growing = Branches([100 + 10 * k for k in range(40)], pieces)
    alone = sum(size**2 for size in growing.sizes)
    assert len(growing.calls) < 20 and growing.squares() <= 1.25 * alone


@pytest.mark.parametrize("merged", [1.25, 0.0], ids=["calls shared", "a call for each piece"])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "mask"])
def test_kernels_without_a_mask_have_the_gradients_of_a_mask(tiny_model, monkeypatch, kernel, merged):
    """What a GPU's kernels are given. On a CPU torch computes the same bias by a mask of its own."""
    branches, model = prompts_and_responses(7, 4, 9), tiny(tiny_model)
    assert model.config.num_attention_heads > model.config.num_key_value_heads
    expected = logits_and_gradient(model, branches)
    monkeypatch.setattr("trl_credit.passes.branches.MERGED", merged)
    monkeypatch.setattr(causal, "HAVE_KERNELS", {"cpu"})
    seen = []
    monkeypatch.setattr(causal, "can_use_flash_attention", lambda params: kernel == "flash")
    monkeypatch.setattr(causal, "can_use_efficient_attention", lambda params: kernel == "efficient")
    attention = causal.scaled_dot_product_attention
    monkeypatch.setattr(
        causal,
        "scaled_dot_product_attention",
        lambda q, k, v, **given: (seen.append((q.size(1), k.size(1))), attention(q, k, v, **given))[1],
    )
    fresh = prompts_and_responses(7, 4, 9)
    for left, right in zip(logits_and_gradient(model, fresh), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    heads, of_keys = model.config.num_attention_heads, model.config.num_key_value_heads
    # flash kernels take keys and values as they are; the others get copies for each head
    assert set(seen) == {"flash": {(heads, of_keys)}, "efficient": {(heads, heads)}, "mask": set()}[kernel]


def test_kernels_under_autocast_get_one_type(tiny_model, monkeypatch):
    """Rotary embeddings leave queries and keys in float32 under autocast, and values in bfloat16."""
    types = set()
    monkeypatch.setattr(causal, "HAVE_KERNELS", {"cpu"})
    monkeypatch.setattr(causal, "can_use_flash_attention", lambda params: True)
    attention = causal.scaled_dot_product_attention
    monkeypatch.setattr(
        causal,
        "scaled_dot_product_attention",
        lambda *x, **given: (types.update(part.dtype for part in x), attention(*x, **given))[1],
    )
    model, branches = tiny(tiny_model, torch.float32), prompts_and_responses(7, 4, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pass_over(model, branches).float()
    assert types == {torch.bfloat16}
    exact = pass_over(model, branches)
    assert (found - exact).square().mean() < 1e-3 * exact.square().mean()


def test_a_mask_for_some_queries_at_a_time_changes_nothing(tiny_model, monkeypatch):
    branches, model = prompts_and_responses(70, 40, 90), tiny(tiny_model)
    expected, sizes, mask = logits_and_gradient(model, branches), [], CausalMasks.mask

    def noted(self, width, length, like):
        sizes.append((width, self.most))
        return mask(self, width, length, like)

    monkeypatch.setattr(CausalMasks, "mask", noted)
    monkeypatch.setattr(causal, "MOST_BYTES", 2**15)
    for left, right in zip(logits_and_gradient(model, branches), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    assert len({width for width, _ in sizes}) > 1 and all(2 * most * width * 8 <= 2**15 for width, most in sizes)
