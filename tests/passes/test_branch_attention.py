"""Calls of attention over branches: their number and their kernels."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_credit.passes import branches as branches_module
from trl_credit.passes.attention import tree_attention
from trl_credit.passes.branches import Branches, Piece


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


@pytest.fixture
def kernel_calls(monkeypatch):
    """Queries, keys and values that a GPU's kernels are given. A CPU computes the same bias by a mask."""
    calls, attention = [], branches_module.scaled_dot_product_attention

    def noted(*tensors, **options):
        calls.append(tensors)
        return attention(*tensors, **options)

    monkeypatch.setattr(branches_module, "HAVE_KERNELS", {"cpu"})
    monkeypatch.setattr(branches_module, "can_use_flash_attention", lambda params: True)
    monkeypatch.setattr(branches_module, "scaled_dot_product_attention", noted)
    return calls


def test_pieces_with_equally_many_tokens_before_them_share_a_call():
    calls = prompts_and_responses(7, 6, 8).calls
    assert [(len(call.pieces), call.before, call.runs, call.width) for call in calls] == [(2, 0, 2, 5), (2, 5, 6, 8)]
    # but not a prompt of 100 tokens with one of 5, which would be padded to 100
    uneven = Branches([5, 100], [Piece((), [(0,)]), Piece((), [(1,)])]).calls
    assert [(call.runs, call.width) for call in uneven] == [(1, 5), (1, 100)]
    pieces = [Piece((), [(k,)]) for k in range(40)]
    growing = Branches([100 + 10 * k for k in range(40)], pieces)
    alone = sum(size**2 for size in growing.sizes)
    assert len(growing.calls) < 20 and growing.squares() <= 1.25 * alone


@pytest.mark.parametrize("merged", [1.25, 0.0], ids=["calls shared", "a call for each piece"])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "mask"])
def test_kernels_without_a_mask_have_the_gradients_of_a_mask(tiny_model, monkeypatch, kernel_calls, kernel, merged):
    model = tiny(tiny_model)
    heads, of_keys = model.config.num_attention_heads, model.config.num_key_value_heads
    assert heads > of_keys
    monkeypatch.setattr(branches_module, "MERGED", merged)
    monkeypatch.setattr(branches_module, "can_use_flash_attention", lambda params: kernel == "flash")
    monkeypatch.setattr(branches_module, "can_use_efficient_attention", lambda params: kernel == "efficient")
    results = logits_and_gradient(model, prompts_and_responses(7, 4, 9))
    # flash kernels take keys and values as they are; the others get copies for each head
    sizes = {(query.size(1), key.size(1)) for query, key, _ in kernel_calls}
    assert sizes == {"flash": {(heads, of_keys)}, "efficient": {(heads, heads)}, "mask": set()}[kernel]
    monkeypatch.setattr(branches_module, "MERGED", 1.25)
    monkeypatch.setattr(branches_module, "HAVE_KERNELS", set())
    for left, right in zip(results, logits_and_gradient(model, prompts_and_responses(7, 4, 9)), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def test_kernels_under_autocast_get_one_type(tiny_model, kernel_calls):
    """Rotary embeddings leave queries and keys in float32 under autocast, and values in bfloat16."""
    model, branches = tiny(tiny_model, torch.float32), prompts_and_responses(7, 4, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = pass_over(model, branches).float()
    assert {x.dtype for tensors in kernel_calls for x in tensors} == {torch.bfloat16}
    exact = pass_over(model, branches)
    assert (logits - exact).square().mean() < 1e-3 * exact.square().mean()
