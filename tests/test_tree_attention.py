"""Branches side by side in a row: the same logits as each branch by itself."""

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen3Config

from trl_credit.rollouts.attention import check_tree_attention, tree_attention, visible_mask


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
