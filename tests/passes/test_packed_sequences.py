"""Packed sequences, for attention whose kernels take sequences of unequal lengths.

Kernels of GPUs are not here: "eager" stands for them, which finds the sequences by their positions.
"""

import logging
from functools import partial

import pytest
import torch
from passes_helpers import CASES, check_equal, compared, exact_softmax, model_of, trained
from tiny_models import LAYERS
from transformers import NemotronConfig, Qwen3Config

from trl_credit.passes import shared_prefix
from trl_credit.passes.attention import sequence_attention
from trl_credit.passes.prefix_layout import PromptRow, layout_of, packed_sequences


PROMPTS = ["1+1=", "1234567-1234567+7654321-7654321=", "11-22+33-44+55="]
SMALL = {"hidden_size": 32, "intermediate_size": 64, **LAYERS, "num_key_value_heads": 1, "initializer_range": 0.2}


@pytest.mark.parametrize("multiple", [1, 16])
def test_rows_lie_one_after_the_other(multiple):
    rows = [PromptRow(0, 4, 3), PromptRow(1, 2, 0), PromptRow(1, 1, 4), PromptRow(0, 4, 1)]
    packing = packed_sequences(rows, multiple=multiple)
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
    assert packed_sequences([PromptRow(0, 3, 0)]) is None


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
def run(make_trainer, tmp_path, tiny_model, monkeypatch):
    """Trains a model with "eager" attention in float64, whose kernels are said to take sequences."""

    def train(mode, algo="base", **settings):
        monkeypatch.setattr(shared_prefix, "KERNELS", ("eager",))
        settings = {"output_dir": str(tmp_path / mode), "max_completion_length": 9, **settings}
        config = Qwen3Config(**SMALL, head_dim=16, attn_implementation="eager")
        model = partial(model_of, config, tiny_model)
        return trained(make_trainer, algo, model=model, prompts=PROMPTS, shared_prefix=mode, **settings)

    return train


@pytest.mark.slow
@pytest.mark.parametrize("case", ["s_trace", "reference", "chain", "tree"])
def test_gradients_are_those_of_padded_rows(run, monkeypatch, case):
    exact_softmax(monkeypatch)
    algo, settings = CASES[case]
    off, trainer, auto = compared(run, algo, mode="auto", **settings)
    assert trainer._passes.prefix.is_exact and trainer.findings["rows_end_to_end_are_exact"]
    assert any(rows == 1 for grad, (rows, _) in auto.shapes if grad)  # or padding was less than a twentieth
    assert auto.tokens(trained=True) < off.tokens(trained=True)


def test_no_padding_is_computed(run, monkeypatch):
    exact_softmax(monkeypatch)
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    (_, off), (trainer, auto) = (run(mode, "grpo", beta=0.0, length_sort="off", **settings) for mode in ("off", "auto"))
    check_equal(off, auto)
    batch = trainer._buffered_inputs[0]
    real = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
    assert auto.shapes[-1] == (True, (1, real)) and real < 0.8 * off.shapes[-1][1][0] * off.shapes[-1][1][1]


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

    assert outcome(Qwen3Config(**SMALL, head_dim=16)) == (implementation == "flash_attention_2", 1)
    assert outcome(NemotronConfig(**SMALL), shared_prefix="off") == (False, 0)
    assert outcome(Qwen3Config(**SMALL, attention_dropout=0.1)) == (False, 0)
