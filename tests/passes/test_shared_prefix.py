"""Prompts that rows share, computed once: the numbers of plain rows, fewer tokens, and where rows stay as they are."""

import json
import logging
from functools import partial

import passes_helpers
import pytest
import torch
import trl
from packaging.version import Version
from passes_helpers import CASES, compared, model_of, trained, with_slow
from tiny_models import LAYERS, tiny_qwen3_moe
from transformers import AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import trl_credit
from trl_credit.passes import flops, prefix_layout, shared_prefix
from trl_credit.passes.attention import sequence_attention
from trl_credit.passes.padding import rows_of
from trl_credit.passes.prefix_layout import Batching, PromptRow, layout_of, packing_of


# before it TRL computes logits of the prompts too: `takes_packed_sequences`
packs_sequences = pytest.mark.skipif(Version(trl.__version__) < Version("1.14"), reason="needs TRL 1.14")
LONG = ["1234567-1234567+7654321-7654321=", "7654321+12345-12345-1234567+11=", "11-22+33-44+55-66+77-88+99-11="]


# Which token lies where


@pytest.mark.parametrize("multiple", [1, 16])
def test_every_token_sees_what_it_saw_in_its_row(multiple):
    rows = [PromptRow(0, 4, 3), PromptRow(1, 1, 1), PromptRow(2, 2, 1), PromptRow(1, 1, 4), PromptRow(0, 4, 2)]
    rows += [PromptRow(0, 4, 0), PromptRow(1, 1, 2)]
    packing = packing_of(rows, multiple=multiple)
    layout = layout_of(packing, rows, widths=(5, 4))
    assert packing.length % multiple == 0 and packing.kept == 3 + 2 + 1 + 4 + 1 + 2 + 6
    assert layout.mask.sum() == packing.kept + 3 + 1 and layout.mask[0, packing.padding :].all()
    seen, source = passes_helpers.dense(packing.branches, 1, packing.length)[0], layout.source[0]
    for i, row in enumerate(rows):
        for t in range(4):
            at = int(layout.place[i, t])
            assert (at >= 0) == (t < row.response)
            if at >= 0:
                at += packing.length - packing.kept
                # the prompt, of the first row that has it, without the last token; each response has its own copy
                prompt = [row.number * 9 + k for k in range(5 - row.prompt, 4)]
                assert source[seen[at]].tolist() == [*prompt, *(i * 9 + 4 + k for k in range(t + 2))]


def test_what_a_packing_costs():
    eight = [PromptRow(0, 512, 256)] * 8
    assert packing_of(eight).cost == (511 + 8 * 257, 511**2 + 8 * 257 * (511 + 257), 8 * 257)
    assert packing_of(eight, multiple=64).cost == (2624, 511**2 + 8 * 257 * (511 + 257), 8 * 257)
    # TRL asks for one logit more than it keeps: one token of padding, where prompts leave none
    assert packing_of([PromptRow(0, 1, 2)] * 2).cost == (1 + 6, 2 * 3 * 3, 6)
    # responses are padded to the longest to their prompt, in attention alone
    uneven = packing_of([PromptRow(0, 3, 1), PromptRow(0, 3, 5), PromptRow(1, 3, 9)])
    assert uneven.cost == (2 + 2 + 2 + 6 + 10, 2 * 4 + 2 * 6 * 8 + 10 * 12, 18)
    # where nothing is shared there is none, whatever the prompts without a response
    assert packing_of([PromptRow(0, 9, 1), PromptRow(1, 9, 1), PromptRow(1, 9, 0)]) is None


def test_rows_of_a_prompt_stand_together():
    rows = [PromptRow(n, 4, r) for n, r in ((0, 1), (1, 5), (0, 2), (2, 9), (1, 6), (1, 5))]
    assert prefix_layout.by_prompt(rows) == [4, 1, 5, 2, 0, 3]


def test_which_prompts_are_the_same():
    ids = torch.tensor([[0, 0, 5], [0, 5, 5], [0, 0, 5], [9, 0, 5]])
    mask = torch.tensor([[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]])
    rows, is_whole = rows_of(mask, torch.tensor([[1, 0], [1, 1], [0, 0], [1, 0]]), prompt_ids=ids)
    numbers = [row.number for row in rows]
    assert is_whole and numbers[0] == numbers[2] == numbers[3] != numbers[1]
    assert [(row.prompt, row.response) for row in rows] == [(2, 1), (2, 2), (2, 0), (2, 1)]
    mask[0, 1:] = torch.tensor([1, 0])  # a hole, or an empty prompt
    assert not rows_of(mask, torch.ones(4, 2), prompt_ids=ids)[1]
    assert not rows_of(torch.zeros(1, 2), torch.ones(1, 2))[1]


# The numbers of plain rows

SMALL = {"hidden_size": 32, "intermediate_size": 64, **LAYERS, "num_key_value_heads": 1, "initializer_range": 0.2}


def config_of(kind, **settings):
    return CONFIG_MAPPING[kind](**SMALL, **settings)


@pytest.fixture
def run(make_trainer, tmp_path, tiny_model):
    """Trains with `shared_prefix` in float64, and returns the trainer and what was watched."""

    def train(mode, algo="base", *, model=None, prompts=LONG, **settings):
        settings = {"output_dir": str(tmp_path / mode), "max_completion_length": 9, **settings}
        model = model or partial(model_of, config_of("qwen3", head_dim=16), tiny_model)
        return trained(make_trainer, algo, model=model, prompts=prompts, shared_prefix=mode, **settings)

    return train


EIGHT = {"per_device_train_batch_size": 8}
OWN_CASES = {name: CASES[name] for name in ("reference", "lora", "s_trace", "chain", "tree", "truncated")} | {
    "rows in their places": ("grpo", {**EIGHT, "length_sort": "off"}),
    # at a threshold that no two tokens tie at, or rounding decides
    "entropies": ("grpo", {**EIGHT, "top_entropy_quantile": 0.77, "entropy_coef": 0.1}),
    "checkpointing": ("s_trace", {**EIGHT, "gradient_checkpointing": True}),
}
KINDS = {"qwen2": {}, "llama": {}, "gemma": {"head_dim": 16}}  # the others train a Qwen3
OWN_CASES |= dict.fromkeys(KINDS, ("s_trace", EIGHT))


@pytest.mark.parametrize("case", with_slow(OWN_CASES, "reference", "chain", "truncated", "entropies"))
def test_every_algorithm_and_model_has_the_gradients_of_rows(run, tiny_model, case):
    algo, settings = OWN_CASES[case]
    if case in KINDS:
        settings = {**settings, "model": partial(model_of, config_of(case, **KINDS[case]), tiny_model)}
    off, trainer, on = compared(run, algo, mode="on", **{"steps_per_generation": 4, **settings})
    assert trainer._passes.prefix.is_exact
    assert all(("lora" in name) == (case == "lora") for step in on.gradients for name in step)
    size = trainer.args.per_device_train_batch_size
    share = 0.5 if size == 8 else 0.9 if algo == "spo_tree" else 0.85  # rows of trees have other prompts too
    assert on.tokens(trained=True) < share * off.tokens(trained=True)
    if settings.get("beta"):
        assert on.tokens(trained=False) < off.tokens(trained=False)


# When


@pytest.fixture
def free_calls(monkeypatch):
    """Calls cost nothing, or nothing would be packed on models as small as these."""
    monkeypatch.setitem(flops.OF_A_CALL, "cpu", 0.0)


BATCH = {**EIGHT, "steps_per_generation": 4}
SAVES = {**BATCH, "lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 2}


class Neighbour(torch.nn.Module):
    """An embedding that mixes a token with the one in the column before it, as convolutions do."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.weight = inner, inner.weight

    def forward(self, ids):
        x = self.inner(ids)
        return x + 0.5 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


def test_a_model_that_sees_columns_keeps_its_rows(run, tiny_model, caplog, free_calls):
    def model():
        neighbours = model_of(config_of("qwen3", head_dim=16, tie_word_embeddings=False), tiny_model)
        neighbours.model.embed_tokens = Neighbour(neighbours.model.embed_tokens)
        return neighbours

    off, trainer, auto = compared(run, mode="auto", model=model, **BATCH)
    assert "shared_prefix='auto' leaves rows unpacked: log-probabilities" in caplog.text
    assert trainer._passes.prefix.is_exact is False
    assert auto.tokens(trained=True) == off.tokens(trained=True)
    with pytest.raises(ValueError, match=r"shared_prefix='on': .*nats per token.*: set shared_prefix='off'"):
        run("on", model=model, **BATCH)


SCALED = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of("mistral", sliding_window=8), "full attention in every layer"),
        (config_of("llama", rope_parameters=SCALED), "needs relative positions"),
        (CONFIG_MAPPING["gpt2"](n_embd=32, n_layer=2, n_head=2, n_positions=128), "needs relative positions"),
        (config_of("nemotron"), "layers that pass keyword arguments on to attention"),
        (config_of("llama"), "attn_implementation='sdpa', and has 'eager'"),
        (config_of("llama"), "torch_compile=False"),
        (None, "router_aux_loss_coef=0"),
    ],
    ids=["sliding", "scaled", "learned", "layers", "eager", "compiled", "experts"],
)
def test_what_cannot_share_prompts_is_refused(make_trainer, tiny_model, config, words):
    """With "on"; and "auto" packs nothing."""
    settings = {}
    if config is None:
        model = passes_helpers.with_tokenizer(tiny_qwen3_moe(AutoTokenizer.from_pretrained(tiny_model)), tiny_model)
        settings = {"model_init_kwargs": None}
    else:
        model = model_of(config, tiny_model, torch.float32)
    settings |= {"torch_compile": True} if "torch_compile" in words else {}
    model.config._attn_implementation = "eager" if "sdpa" in words else "sdpa"
    pair = trl_credit.CreditConfig, passes_helpers.scripted(trl_credit.CreditTrainer, model)
    assert not make_trainer(pair, shared_prefix="auto", **settings)._passes.prefix.may_pack
    with pytest.raises(ValueError, match=f"shared_prefix='on' .*{words}"):
        make_trainer(pair, shared_prefix="on", **settings)


def test_auto_packs_where_that_is_cheaper(make_trainer, monkeypatch):
    assert flops.cost_of(CONFIG_MAPPING["gpt2"]()) is None  # layers of which nothing is known
    for cost_of_a_call, prompt, packs in ((0.0, 64, True), (0.0, 2, False), (2e7, 64, False)):
        monkeypatch.setitem(flops.OF_A_CALL, "cpu", cost_of_a_call)
        prefix = make_trainer(shared_prefix="auto")._passes.prefix
        plain = [prefix_layout.MicroBatch([*range(8)], flops.rows_pass(8, length=prompt + 8, scored=8), None)]
        shared = prefix.share([PromptRow(0, prompt, 8)] * 8, plain, Batching(8, 1))
        assert (shared is not None) == packs


def test_passes_without_a_gradient_are_plain_where_those_of_the_loss_are(run, tiny_model, free_calls, tmp_path):
    """With dropout, and in a run that goes on with `off` after `auto` has found packed rows to be exact."""
    draws = partial(model_of, config_of("llama", attention_dropout=0.1), tiny_model)
    _, watch = run("auto", model=draws, max_steps=1, beta=0.1, **BATCH)
    assert {grad for grad, _ in watch.shapes} == {False, True} and all(rows > 1 for _, (rows, _) in watch.shapes)
    settings = {**SAVES, "beta": 0.1, "output_dir": str(tmp_path / "one")}
    first, _ = run("auto", max_steps=2, **settings)
    assert first._passes.prefix.is_exact
    found = json.loads((tmp_path / "one" / "checkpoint-2" / "credit_state.json").read_text())["found"]
    assert found == {"shared_prefix_is_exact": True}
    resumed, watch = run("off", resume=True, max_steps=4, **settings)
    assert resumed.state.global_step == 4 and all(rows > 1 for _, (rows, _) in watch.shapes)


# Packed sequences, for attention whose kernels take sequences of unequal lengths. "eager" stands for kernels of GPUs


@pytest.mark.parametrize("multiple", [1, 16])
def test_rows_lie_one_after_the_other(multiple):
    rows = [PromptRow(0, 4, 3), PromptRow(1, 2, 0), PromptRow(1, 1, 4), PromptRow(0, 4, 1)]
    packing = prefix_layout.packed_sequences(rows, multiple=multiple)
    layout = layout_of(packing, rows, widths=(5, 4))
    real = 7 + 5 + 5
    assert packing.length == -(-real // multiple) * multiple and packing.kept == packing.length - 4
    assert packing.ends == ([7, 5, 5, 15] if multiple == 16 else [7, 5, 5])
    assert packing.cost == (packing.length, sum(n**2 for n in packing.ends), packing.kept)
    columns = [[*range(9 * i + 5 - rows[i].prompt, 9 * i + 5 + rows[i].response)] for i in (0, 2, 3)]
    assert layout.source[0, :real].tolist() == sum(columns, [])
    # probabilities of responses alone
    scored = [[0] * rows[i].prompt + [1] * rows[i].response for i in (0, 2, 3)]
    assert layout.mask[0].tolist() == sum(scored, []) + [0] * (packing.length - real)
    places = layout.place + packing.length - packing.kept
    for i, row in enumerate(rows):
        for t in range(4):
            assert (layout.place[i, t] >= 0) == (t < row.response)
            if t < row.response:
                assert layout.source[0, places[i, t]] == 9 * i + 5 + t
    assert prefix_layout.packed_sequences([PromptRow(0, 3, 0)]) is None


def test_models_get_the_lengths_of_the_sequences():
    model, seen = torch.nn.Identity(), {}
    model.forward = lambda x, **kwargs: seen.update(kwargs)
    with sequence_attention(model, (3, 2, 4), torch.device("cpu")):
        model(torch.zeros(1, 9), attention_mask=torch.ones(1, 9))
    assert seen["attention_mask"] is None and seen["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert seen["cu_seq_lens_q"].tolist() == seen["cu_seq_lens_k"].tolist() == [0, 3, 5, 9]
    assert seen["cu_seq_lens_q"].dtype == torch.int32 and seen["max_length_q"] == seen["max_length_k"] == 4
    assert not model._forward_pre_hooks


@pytest.fixture
def run_eager(run, tiny_model, monkeypatch):
    """The same with "eager" attention, whose kernels are said to take sequences: it finds them by their positions."""
    monkeypatch.setattr(shared_prefix, "KERNELS", ("eager",))
    passes_helpers.exact_softmax(monkeypatch)
    model = partial(model_of, config_of("qwen3", head_dim=16, attn_implementation="eager"), tiny_model)
    return partial(run, model=model, prompts=["1+1=", "1234567-1234567+7654321-7654321=", "11-22+33-44+55="])


@packs_sequences
@pytest.mark.slow
@pytest.mark.parametrize("case", ["s_trace", "reference", "chain", "tree"])
def test_gradients_are_those_of_padded_rows(run_eager, case):
    algo, settings = CASES[case]
    off, trainer, auto = compared(run_eager, algo, mode="auto", **settings)
    assert trainer._passes.prefix.is_exact and trainer.findings["rows_end_to_end_are_exact"]
    assert any(rows == 1 for grad, (rows, _) in auto.shapes if grad)  # or padding was less than a twentieth
    assert auto.tokens(trained=True) < off.tokens(trained=True)


@packs_sequences
def test_no_padding_is_computed(run_eager):
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    (_, off), (trainer, auto) = (
        run_eager(mode, "grpo", beta=0.0, length_sort="off", **settings) for mode in ("off", "auto")
    )
    passes_helpers.check_equal(off, auto)
    batch = trainer._buffered_inputs[0]
    real = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
    assert auto.shapes[-1] == (True, (1, real)) and real < 0.8 * off.shapes[-1][1][0] * off.shapes[-1][1][1]


@packs_sequences
@pytest.mark.parametrize("implementation", ["flash_attention_2", "eager"])
def test_other_attention_warns_where_sdpa_would_help(make_trainer, tiny_model, caplog, implementation):
    def outcome(config, **settings):
        model = model_of(config, tiny_model, torch.float32)
        model.config._attn_implementation = implementation  # no pass is made
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            trainer = make_trainer("grpo", trainer_kwargs={"model": model}, **settings)
        warnings = [r.getMessage() for r in caplog.records if "shared_prefix" in r.getMessage()]
        return trainer._passes.prefix.may_pack, len(warnings)

    assert outcome(config_of("qwen3", head_dim=16)) == (implementation == "flash_attention_2", 1)
    assert outcome(config_of("nemotron"), shared_prefix="off") == (False, 0)
    assert outcome(config_of("qwen3", attention_dropout=0.1)) == (False, 0)
