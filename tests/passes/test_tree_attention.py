"""Tree attention: the same logits as each branch by itself, and the calls of kernels that it makes."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from custom_functions import args_of
from passes_helpers import dense, exact_softmax
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, NemotronConfig, Qwen3Config

from trl_credit.passes import branches as branches_module
from trl_credit.passes import flops
from trl_credit.passes.attention import BRANCHES, takes_branches, tree_attention, visible_mask
from trl_credit.passes.branches import Branches, Piece, branches_of
from trl_credit.rollouts.forest import Trees


@pytest.fixture(autouse=True)
def free_calls(monkeypatch):
    """Calls of attention cost nothing, or trees as small as these would have a mask."""
    monkeypatch.setitem(flops.OF_A_CALL, "cpu", 0.0)


PROMPT, FIRST, SECOND = [5, 6, 7], [8, 9], [10, 11, 12]


@pytest.mark.parametrize("kind", ["pieces", "mask", "eager"])
def test_logits_of_branches_are_those_of_the_branch_alone(tiny_model, kind, monkeypatch):
    implementation = "eager" if kind == "eager" else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=implementation).double().eval()
    if kind == "mask":  # as models do whose layers are not transformers' own
        monkeypatch.setattr(type(model), "_supports_attention_backend", False)
    if kind == "eager":
        exact_softmax(monkeypatch)
    assert takes_branches(model) == (kind == "pieces")
    row = [0, *PROMPT, *FIRST, PROMPT[-1], *SECOND]  # a token of padding on the left
    until = torch.tensor([[0, 10, 10, 6, 6, 6, 10, 10, 10, 10]])
    mask = torch.tensor([[0] + [1] * 9])
    with torch.no_grad(), tree_attention(model):
        packed = model(input_ids=torch.tensor([row]), attention_mask=mask, token_type_ids=until).logits[0]
    with torch.no_grad():
        for branch, places in ((FIRST, [1, 2, 3, 4, 5]), (SECOND, [1, 2, 6, 7, 8, 9])):
            alone = model(input_ids=torch.tensor([PROMPT + branch])).logits[0]
            torch.testing.assert_close(packed[places], alone, rtol=1e-9, atol=1e-9)
    assert not model._forward_pre_hooks  # and the model is as it was


def random_tree(length: int, *, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """`visible_until` and mask of rows of trees of random shape, padded on both sides."""
    torch.manual_seed(length)
    until, mask_t = torch.zeros(rows, length, dtype=torch.long), torch.ones(rows, length, dtype=torch.long)

    def grow(row: int, at: int, end: int) -> None:
        """A node of some tokens in front, and its children."""
        own = min(end, at + 1 + int(torch.randint(0, max(1, (end - at) // 3), ())))
        until[row, at:own] = end
        if own == end:
            return
        first = own
        while own < end:
            after = min(end, own + 1 + int(torch.randint(0, max(1, 2 * (end - own) // 3), ())))
            grow(row, own, after)
            until[row, first - 1] = min(int(until[row, first - 1]), after)  # others have a copy of the last token
            own = after

    for row in range(rows):
        begin, end = 3 * row, length - 2 * row
        grow(row, begin, end)
        mask_t[row, :begin] = mask_t[row, end:] = 0
    return until, mask_t


@pytest.mark.parametrize("length", [12, 40, 41, 90, 200])
def test_branches_are_those_of_the_mask(length):
    until, mask_t = random_tree(length)
    branches = branches_of(until, mask_t=mask_t)
    seen = visible_mask(until, mask_t=mask_t)
    assert sum(branches.sizes) == 3 * length and len(branches.pieces) > 1
    own_mask = dense(branches, 3, length)
    assert torch.equal(own_mask, seen & mask_t.bool().unsqueeze(2))
    assert torch.equal(branches.positions((3, length)), (own_mask.sum(-1) - 1).clamp(min=0))
    assert branches.squares() < 3 * length**2
    # padding alone, as the rows of a process that has none of its own
    assert not branches_of(until, mask_t=torch.zeros_like(mask_t)).calls


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_mask(tiny_model, monkeypatch, checkpointing):
    until, mask_t = random_tree(60)
    ids = torch.randint(3, 20, until.shape)
    results = []
    for in_pieces in (True, False):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="sdpa").double().train()
        monkeypatch.setattr(type(model), "_supports_attention_backend", in_pieces)
        if checkpointing:  # which makes passes again when the context is gone
            model.gradient_checkpointing_enable()
        with tree_attention(model):
            logits = model(input_ids=ids, attention_mask=mask_t, token_type_ids=until, use_cache=False).logits
        total = (logits * mask_t.unsqueeze(-1)).square().sum()
        results.append((logits[mask_t == 1].detach(), torch.autograd.grad(total, list(model.parameters()))))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-9, atol=1e-9)
    largest = max(x.abs().max() for x in results[1][1])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-12 * largest.item())


def seen_by_attention(model, until, mask_t, *, is_compiled=False) -> list[bool]:
    """Whether the attention of each layer got branches, in a pass."""
    got_branches = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: got_branches.append(BRANCHES in kwargs), with_kwargs=True
        )
    with torch.no_grad(), tree_attention(model, is_compiled=is_compiled):
        model(input_ids=torch.ones_like(until), attention_mask=mask_t, token_type_ids=until)
    return got_branches


def test_a_mask_where_that_is_cheaper_or_the_model_is_compiled(tiny_model, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="sdpa")
    until, mask_t = random_tree(60)
    assert all(seen_by_attention(model, until, mask_t))
    assert not any(seen_by_attention(model, until, mask_t, is_compiled=True))
    monkeypatch.setitem(flops.OF_A_CALL, "cpu", 2e7)
    assert not any(seen_by_attention(model, until, mask_t))


SMALL = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}


def test_models_are_tried_before_they_get_branches():
    state = torch.get_rng_state()
    # layers of the second do not pass keyword arguments on
    for config, takes in ((LlamaConfig(**SMALL), True), (NemotronConfig(**SMALL), False)):
        with torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        assert type(model)._supports_attention_backend and takes_branches(model) == takes
    assert torch.equal(torch.get_rng_state(), state)


OWN_MASK = {"attention_mask": torch.ones(1, 1, 12, 12, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("module", "hook", "message"),
    [
        ("self_attn", lambda _, args, kwargs: (args, kwargs | OWN_MASK), "a layer has made its own attention mask"),
        ("", lambda _, args, kwargs: (args, {name: x for name, x in kwargs.items() if name != BRANCHES}), ""),
    ],
)
def test_neither_branches_nor_the_mask_of_a_layer_get_lost(tiny_model, module, hook, message):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="sdpa")
    for layer in model.model.layers:
        layer.get_submodule(module).register_forward_pre_hook(hook, with_kwargs=True)
    until, mask_t = random_tree(12)
    with pytest.raises(RuntimeError, match=message), tree_attention(model):
        model(input_ids=torch.ones_like(until), attention_mask=mask_t, token_type_ids=until)


def test_models_that_cannot_are_refused():
    mixed = {"layer_types": ["full_attention", "sliding_attention"]}
    policy = SimpleNamespace(args=args_of(rollouts="tree", tree_rows="packed", loss_type="dapo"))
    trees = partial(Trees, policy, prompts=SimpleNamespace(stateful=()))
    trees(model_config=Qwen3Config(num_hidden_layers=2, attn_implementation="sdpa"))
    for config, words in (
        (Qwen3Config(num_hidden_layers=2, attn_implementation="flash_attention_2"), "sdpa"),
        (Qwen3Config(num_hidden_layers=2, attn_implementation="sdpa", **mixed), "sliding_attention"),
        (MistralConfig(num_hidden_layers=2, attn_implementation="sdpa", sliding_window=64), "sliding_attention"),
    ):
        with pytest.raises(ValueError, match=f"{words}.*tree_rows='paths'"):
            trees(model_config=config)


# Calls over branches: their number and their kernels


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
    plain = logits_and_gradient(model, prompts_and_responses(7, 4, 9))
    torch.testing.assert_close(results, plain, rtol=1e-9, atol=1e-12)


def test_kernels_under_autocast_get_one_type(tiny_model, kernel_calls):
    """Rotary embeddings leave queries and keys in float32 under autocast, and values in bfloat16."""
    model, branches = tiny(tiny_model, torch.float32), prompts_and_responses(7, 4, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = pass_over(model, branches).float()
    assert {x.dtype for tensors in kernel_calls for x in tensors} == {torch.bfloat16}
    exact = pass_over(model, branches)
    assert (logits - exact).square().mean() < 1e-3 * exact.square().mean()
