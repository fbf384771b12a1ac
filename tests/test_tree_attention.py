"""Branches side by side in a row: the same logits as each branch by itself."""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AutoModelForCausalLM, MistralConfig, Qwen3Config

from trl_credit.rollouts.attention import check_tree_attention, tree_attention, visible_blocks, visible_mask


def test_mask_of_a_small_tree():
    # prompt 0 1; branch 2 3; a copy of 1 at 4, and branch 5; a token 6 of padding
    until = torch.tensor([[6, 4, 4, 4, 6, 6, 0]])
    seen = visible_mask(until, mask_t=torch.tensor([[1, 1, 1, 1, 1, 1, 0]]))[0].long().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_logits_of_branches_are_those_of_the_branch_alone(tiny_model, implementation):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=implementation).double().eval()
    prompt, first, second = [5, 6, 7], [8, 9], [10, 11, 12]
    row = [0, *prompt, *first, prompt[-1], *second]  # a token of padding on the left
    until = torch.tensor([[0, 10, 10, 6, 6, 6, 10, 10, 10, 10]])
    mask = torch.tensor([[0] + [1] * 9])
    with torch.no_grad(), tree_attention(model, implementation=implementation):
        packed = model(input_ids=torch.tensor([row]), attention_mask=mask, token_type_ids=until).logits[0]
    with torch.no_grad():
        for branch, places in ((first, [1, 2, 3, 4, 5]), (second, [1, 2, 6, 7, 8, 9])):
            alone = model(input_ids=torch.tensor([prompt + branch])).logits[0]
            torch.testing.assert_close(packed[places], alone, rtol=1e-9, atol=1e-9)
    assert not model._forward_pre_hooks  # and the model is as it was


def random_branches(length: int, *, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """`visible_until` and mask of rows of branches of random lengths, the prompt seen by all, padded."""
    torch.manual_seed(length)
    until, mask_t = torch.zeros(rows, length, dtype=torch.long), torch.ones(rows, length, dtype=torch.long)
    for row in range(rows):
        end, at = length - 7 * row, int(torch.randint(1, length // 3, ()))
        until[row, :at] = end
        while at < end:
            after = min(end, at + int(torch.randint(1, length // 3, ())))
            until[row, at:after] = after
            at = after
        mask_t[row, end:] = 0
    return until, mask_t


@pytest.mark.parametrize("length", [16, 60, 64, 200])
def test_blocks_see_what_their_tokens_see(length):
    until, mask_t = random_branches(length)
    size, blocks = 16, visible_blocks(until, mask_t=mask_t, size=16)
    dense = visible_mask(until, mask_t=mask_t)
    n = -(-length // size)
    for row in range(len(until)):
        for q in range(n):
            some = set(blocks.kv_indices[row, 0, q, : blocks.kv_num_blocks[row, 0, q]].tolist())
            whole = set(blocks.full_kv_indices[row, 0, q, : blocks.full_kv_num_blocks[row, 0, q]].tolist())
            assert not some & whole
            for kv in range(n):
                part = dense[row, q * size : (q + 1) * size, kv * size : (kv + 1) * size]
                assert (kv in some | whole) >= bool(part.any())  # none is missing, at the price of some that are empty
                assert kv not in whole or bool(part.all())
                assert kv not in some | whole or part.any() or kv == q
        i = torch.arange(length)
        found = blocks.mask_mod(torch.tensor(row), torch.tensor(0), i.view(-1, 1), i.view(1, -1))
        assert torch.equal(found, dense[row])


def attended(until, mask_t, device):
    """What FlexAttention and a dense mask make of random queries, keys and values of two heads, which are returned."""
    torch.manual_seed(0)
    shape, trains = (len(until), 2, until.size(1), 16), device != "cpu"  # where it has no backward pass
    q, k, v = (torch.randn(shape, device=device, requires_grad=trains) for _ in range(3))
    run = flex_attention if device == "cpu" else torch.compile(flex_attention)
    blocks = visible_blocks(until.to(device), mask_t=mask_t.to(device))
    dense = visible_mask(until.to(device), mask_t=mask_t.to(device)).unsqueeze(1)
    return (q, k, v), lambda: run(q, k, v, block_mask=blocks), lambda: sdpa(q, k, v, attn_mask=dense)


def test_flex_attention_is_that_of_the_dense_mask():
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # that it is slow without torch.compile
        _, flexible, dense = attended(*random_branches(300), "cpu")
        torch.testing.assert_close(flexible(), dense(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="gradients of FlexAttention: they need CUDA")
def test_gradients_of_flex_attention_are_those_of_the_dense_mask():
    inputs, flexible, dense = attended(*random_branches(300), "cuda")
    gradients = [torch.autograd.grad(call().square().sum(), inputs) for call in (flexible, dense)]
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


def test_models_that_cannot_are_refused():
    config = Qwen3Config(num_hidden_layers=2)
    config._attn_implementation = "sdpa"
    check_tree_attention(config)
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="sdpa.*tree_rows='paths'"):
        check_tree_attention(config)
    mistral = MistralConfig(num_hidden_layers=2, sliding_window=64)
    mistral._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match="sliding_attention.*tree_rows='paths'"):
        check_tree_attention(mistral)
    config._attn_implementation = "sdpa"
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention.*tree_rows='paths'"):
        check_tree_attention(config)
