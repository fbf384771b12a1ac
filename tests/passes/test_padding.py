"""Rows sorted by length inside an accumulation window, and micro-batches without padding: equal steps, fewer tokens."""

from functools import partial

import passes_helpers
import pytest
import torch
import trl
from passes_helpers import CASES, SIZES, Plain, Watch, check_equal, compared, model_of, trained, with_slow
from peft import LoraConfig
from tiny_models import tiny_qwen3_moe
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config
from weight_helpers import same_weights, weights

import trl_credit
from trl_credit.passes import padding, reduced
from trl_credit.passes.padding import Padding, Span
from trl_credit.passes.prefix_layout import PromptRow


PROMPTS = ["1+1=", "12+3+4=", "a=", "1234567-1234567=", "0+0+0=", "7-=", "11+22-33+44=", "5="]


@pytest.fixture
def run(make_trainer, tmp_path):
    """Trains with `length_sort`, or TRL's own trainer, and returns the trainer and what was watched."""

    def train(length_sort, algo="base", *, prompts=PROMPTS, **settings):
        knob = {} if length_sort == "trl" else {"length_sort": length_sort}
        settings = {"output_dir": str(tmp_path / length_sort), **knob, **settings}
        return trained(make_trainer, algo, prompts=prompts, **settings)

    return train


ROWS = {**passes_helpers.TREE, "rollouts": "tree", "loss_type": "dapo"}
OWN_CASES = CASES | {
    "vespo": ("base", {"loss_type": "vespo"}),
    "mask of the code": ("base", {**passes_helpers.MASKED, "loss_type": "grpo", "released_code": ["spo_normalizer"]}),
    "prompts": ("base", {"loss_type": "dapo", "prompt_average": True, "beta": 0.1}),
    "whitened batch": ("base", {"whiten_advantages": "batch"}),
    "packed": ("base", {**ROWS, "tree_rows": "packed", "beta": 0.1}),
    # credit functions that declare `by_row`; KL-Cov's |log ρ| makes a sign of the rounding of ρ = 1
    "fipo": ("fipo", {}),
    "kl_cov": ("kl_cov", {"cov_share": 0.3, "cov_penalty": 0.0, "beta": 0.1}),
}
QUICK = {"s_trace", "lora", "tree", "whitened batch"}


@pytest.mark.parametrize("case", with_slow(OWN_CASES, *OWN_CASES.keys() - QUICK))
def test_the_gradient_of_a_window_is_the_same_for_fewer_tokens(run, case):
    algo, settings = OWN_CASES[case]
    off, trainer, auto = compared(run, algo, mode="auto", **settings)
    assert trainer._passes.padding.window == 4
    assert all(("lora" in name) == (case == "lora") for step in auto.gradients for name in step)
    assert auto.tokens(trained=True) < 0.9 * off.tokens(trained=True)
    if not trainer.args.rollouts == "tree":  # passes over trees without a gradient are trimmed in any case
        assert auto.tokens(trained=False) < 0.9 * off.tokens(trained=False)


def test_off_is_trl_to_the_last_bit_and_auto_to_rounding(run):
    settings = {"beta": 0.04, "num_iterations": 2, "loss_type": "dapo"}
    theirs, seen = run("trl", (trl.GRPOConfig, trl.GRPOTrainer), **settings)
    off, of_off = run("off", **settings)
    auto, of_auto = run("auto", **settings)
    assert of_off.shapes == seen.shapes
    assert same_weights(off, theirs)
    torch.testing.assert_close(weights(auto), weights(theirs), rtol=0, atol=1e-6)
    check_equal(seen, of_auto)


def test_the_tokens_of_a_window_are_those_of_the_longest_rows(run):
    trainer, watch = run("auto", max_steps=2, beta=0.0, prompts=[f"{i}+{j}=" for i in range(4) for j in range(2)])
    batches = trainer._buffered_inputs
    shapes = [shape for grad, shape in watch.shapes if grad]
    lengths = [batch["completion_mask"].sum(1).tolist() for batch in batches]
    for window in (lengths[:4], lengths[4:]):
        rows = [n for batch in window for n in batch]
        assert rows == sorted(rows, reverse=True) and len(set(rows)) > 1
    for batch, shape in zip(batches, shapes, strict=True):
        longest = [int(batch[f"{part}_mask"].sum(1).max()) for part in ("prompt", "completion")]
        assert shape == (2, sum(longest))
        sizes = {name: tuple(x.shape) for name, x in batch.items() if isinstance(x, torch.Tensor) and x.dim() == 2}
        assert sizes.pop("prompt_ids") == sizes.pop("prompt_mask") == (2, longest[0])
        assert sizes and all(shape == (2, longest[1]) for shape in sizes.values()), sizes


def test_knobs_that_are_off_leave_trls_passes(make_trainer):
    passes = make_trainer(length_sort="off", shared_prefix="off", skip_zero_advantage="off")._passes
    assert not passes.reshapes and not passes.skipping.applies


def check_warns(caplog) -> None:
    assert sum("length_sort='auto'" in record.getMessage() for record in caplog.records) == 1


NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
ABSOLUTE = GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2, **NO_DROPOUT)


def scaled_by_length(path):
    """A model whose positions depend on the length of a batch."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return passes_helpers.with_tokenizer(type(model)(model.config), path)


MODELS = {
    "experts": lambda path: passes_helpers.with_tokenizer(tiny_qwen3_moe(AutoTokenizer.from_pretrained(path)), path),
    "absolute": lambda path: model_of(ABSOLUTE, path, torch.float32),
    "scaled": scaled_by_length,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_keeps_the_rows_or_the_padding_that_it_needs(run, tiny_model, caplog, kind):
    off, trainer, auto = compared(run, mode="auto", model=partial(MODELS[kind], tiny_model), max_steps=2)
    padding = trainer._passes.padding
    assert padding.trims == (kind != "scaled") and padding.window == (4 if kind == "absolute" else 1)
    assert auto.tokens(trained=True) < off.tokens(trained=True) if padding.trims else auto.shapes == off.shapes
    check_warns(caplog)


DROPOUT = {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)}


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("base", {"credit": lambda config, tokens: trl_credit.assign_credit(config, tokens)}),
        ("base", {"credit": Plain}),
        ("kl_cov", {"cov_statistics": "microbatch"}),
        ("base", {"importance": "eligible", "selector": "random"}),
        ("base", {"neftune_noise_alpha": 5.0}),
        ("base", {"trainer_kwargs": DROPOUT}),
        ("base", {"loss_type": "bnpo"}),
        ("base", {"entropy_coef": 0.1}),
        ("base", {"whiten_advantages": "microbatch"}),
        ("base", {"top_entropy_quantile": 0.5}),
        ("base", {"steps_per_generation": 6, "gradient_accumulation_steps": 4}),
    ],
    ids=lambda x: x if isinstance(x, str) else ",".join(x),
)
def test_rows_stay_where_sorting_may_change_the_step(make_trainer, caplog, algo, settings):
    padding = make_trainer(algo, **{**SIZES, **settings})._passes.padding
    assert padding.window == 1 and padding.trims
    check_warns(caplog)


def test_widths_are_rounded_up_where_that_is_asked_for(run):
    trainer, _ = run("auto", pad_to_multiple_of=8, max_steps=2)
    widths = {batch["completion_ids"].size(1) for batch in trainer._buffered_inputs}
    prompts = {batch["prompt_ids"].size(1) for batch in trainer._buffered_inputs}
    assert len(widths) > 1 and all(width % 8 == 0 for width in widths | prompts)
    rule = Padding(trainer, kind="relative", multiple=reduced.OF_ACCELERATORS)
    there = Span(200, 150)
    assert rule.width([PromptRow(0, 1, 64), PromptRow(0, 65, 0)], there) == (128, 64)
    assert rule.width([PromptRow(0, 3, 65), PromptRow(0, 193, 129)], there) == (200, 150)  # no further than there is
    assert rule.width([PromptRow(0, 0, 0)], there) == (64, 64)


def test_images_that_are_not_one_for_each_row_keep_rows_in_their_place():
    ids = torch.arange(4).view(2, 2)
    batch = {"prompt_ids": ids, "num_items_in_batch": torch.tensor(3), "old_per_token_logps": None}
    assert padding.is_by_row(batch)
    assert padding.is_by_row(batch | {"pixel_values": torch.zeros(2, 3), "num_images": [1, 1]})
    assert not padding.is_by_row(batch | {"pixel_values": torch.zeros(2, 3), "num_images": [2, 0]})
    assert not padding.is_by_row(batch | {"pixel_values": torch.zeros(8, 3), "num_images": [1, 1]})


def test_columns_of_packed_rows_and_of_images():
    batch = {
        "prompt_ids": torch.arange(10).view(2, 5),
        "prompt_mask": torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]),
        "completion_ids": torch.arange(8).view(2, 4),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]),
        "token_type_ids": torch.tensor([[0, 0, 0, 7, 7, 6, 7, 0, 0], [0, 0, 6, 6, 6, 6, 0, 0, 0]]),
        "pixel_values": torch.zeros(2, 4),
        "advantages": torch.ones(2),
        "importance_sampling_ratio": torch.ones(2, 1),
    }
    rows, _ = padding.rows_of(batch["prompt_mask"], batch["completion_mask"])
    assert [row[1:] for row in rows] == [(2, 2), (3, 1)]
    kept = {name: batch[name] for name in ("pixel_values", "advantages", "importance_sampling_ratio")}
    for are_columns, types in ((True, [[0, 5, 5, 4, 5], [4, 4, 4, 4, 0]]), (False, [[0, 7, 7, 6, 7], [6, 6, 6, 6, 0]])):
        trimmed = padding.trimmed(batch, Span(3, 2), are_columns=are_columns)
        assert trimmed["token_type_ids"].tolist() == types
        assert trimmed["prompt_ids"].tolist() == [[2, 3, 4], [7, 8, 9]]
        assert trimmed["completion_ids"].tolist() == [[0, 1], [4, 5]]
        assert all(trimmed[name] is x for name, x in kept.items())
    one = {"prompt_ids": batch["prompt_ids"], "a": torch.tensor([1, 2]), "b": ["x", "y"], "n": torch.tensor(3)}
    two = {"prompt_ids": batch["prompt_ids"], "a": torch.tensor([3, 4]), "b": ["z", "w"], "n": torch.tensor(3)}
    for places, a, b in (([3, 0], [4, 1], ["w", "x"]), ([2, 1], [3, 2], ["z", "y"])):
        turned = padding.rows_at([one, two], places)
        assert (turned["a"].tolist(), turned["b"], turned["n"].item()) == (a, b, 3)


def test_the_order_is_that_of_trl_where_nothing_is_gained():
    row = partial(PromptRow, 0)
    assert padding.cheapest_order([row(4, 2), row(4, 2), row(4, 2)], 1) == [0, 1, 2]
    assert padding.cheapest_order([row(4, 1), row(4, 9), row(4, 2), row(4, 9)], 2) == [1, 3, 2, 0]
    # by response 2 · (20 + 5) + 2 · (20 + 4) tokens, by row 2 · (20 + 4) + 2 · (1 + 5)
    assert padding.cheapest_order([row(1, 5), row(20, 4), row(1, 4), row(20, 1)], 2) == [1, 3, 0, 2]


@pytest.mark.parametrize("lora", [False, True])
def test_a_row_has_the_positions_that_it_has_in_trl(make_trainer, lora):
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False) if lora else None
    trainer = make_trainer(trainer_kwargs={"peft_config": config})
    trainer.model.double()  # all that is left to round are the angles of positions, in float32 by number
    ids = torch.randint(3, 18, (4, 120), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row, (first, last) in enumerate(((60, 120), (95, 104), (97, 111), (99, 110))):
        mask[row, :first], mask[row, last:] = 0, 0
    options = {"batch_size": 2, "compute_entropy": True}
    theirs = trl.GRPOTrainer._get_per_token_logps_and_entropies
    with torch.no_grad():
        whole = theirs(trainer, trainer.model, ids, mask, 20, **options)
        watch = Watch(trainer)
        ours = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 20, **options)
    assert [shape for _, shape in watch.shapes] == [(2, 60), (2, 14)]
    inside = mask[:, -20:].bool()
    for left, right in zip(ours[:2], whole[:2], strict=True):
        assert (left[~inside] == 0).all()
        torch.testing.assert_close(left[inside], right[inside], rtol=0, atol=2e-7)
