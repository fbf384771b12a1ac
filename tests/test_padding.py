"""Rows sorted by length inside an accumulation window, and micro-batches without padding: equal steps, fewer tokens."""

from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from run_layouts import draw
from tiny_models import tiny_qwen3_moe
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, TrainerCallback

import trl_credit
from trl_credit.logs import read_shard, steps
from trl_credit.rollouts.policy import Continuation
from trl_credit.trainer import padding, row_order


# windows of four micro-batches of two rows, two of which share a generation batch
SIZES = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 8,
    "num_generations": 4,
    "max_completion_length": 24,
    "max_steps": 4,
    "optim": "sgd",  # whose steps are proportional to gradients: Adam would blow rounding up
    "learning_rate": 0.05,
}
PROMPTS = ["1+1=", "12+3+4=", "a=", "1234567-1234567=", "0+0+0=", "7-=", "11+22-33+44=", "5="]


def long_draw(prefix: list[int], occurrence: int, length: int) -> list[int]:
    """Most responses are short; some reach the limit."""
    return draw(prefix, occurrence, length if (sum(prefix) + occurrence) % 3 == 0 else 2 + sum(prefix) % 5)


def scripted(trainer_class, model=None):
    """A trainer whose responses are ragged and follow from their prompts, of a model in the place of the given one."""

    class Scripted(trainer_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **(kwargs if model is None else kwargs | {"model": model}))

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            if getattr(self, "_planned", None) is not None:
                return super()._generate_single_turn(prompt_ids, *args, **kwargs)
            asked, found = {}, []
            for ids in map(tuple, prompt_ids):
                asked[ids] = asked.get(ids, -1) + 1
                found.append(long_draw(list(ids), asked[ids], self.max_completion_length))
            return found, None

        def _continue_once(self, prefixes, *, n, budgets, **others):
            pairs = zip(prefixes, budgets, strict=True)
            return [Continuation(draw(prefix, i, budget), None) for prefix, budget in pairs for i in range(n)]

    return Scripted


def distinct(completions, **kwargs):
    return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]


class Watch(TrainerCallback):
    """Keeps the gradient of every optimizer step, and the shape of every forward pass over rows."""

    def __init__(self, trainer) -> None:
        self.model = trainer.model
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.shapes: list[tuple[bool, tuple[int, ...]]] = []
        models = [trainer.model] + ([trainer.ref_model] if getattr(trainer, "ref_model", None) is not None else [])
        for model in models:
            model.register_forward_pre_hook(self.see, with_kwargs=True)
        trainer.add_callback(self)

    def see(self, module, args, kwargs) -> None:
        self.shapes.append((torch.is_grad_enabled(), tuple(kwargs["input_ids"].shape)))

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = self.model.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})

    def tokens(self, *, trained: bool) -> int:
        return sum(shape[0] * shape[1] for grad, shape in self.shapes if grad == trained)


@pytest.fixture
def run(make_trainer, tmp_path):
    """Trains with `length_sort`, or TRL's own trainer, and returns the trainer and what was watched."""

    def train(length_sort, algo="base", *, resume=None, model=None, prompts=PROMPTS, **settings):
        pairs = {**trl_credit.ALGORITHMS, "base": (trl_credit.CreditConfig, trl_credit.CreditTrainer)}
        config_class, trainer_class = pairs[algo] if isinstance(algo, str) else algo
        if issubclass(config_class, trl_credit.CreditConfig):
            settings["length_sort"] = length_sort
        settings = {"output_dir": str(tmp_path / str(length_sort)), **SIZES, **settings}
        pair = config_class, scripted(trainer_class, model)
        trainer = make_trainer(pair, reward_funcs=distinct, **settings)
        trainer.train_dataset = Dataset.from_dict({"prompt": prompts * 8, "answer": [""] * len(prompts) * 8})
        watch = Watch(trainer)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, watch

    return train


def check_equal(off: Watch, auto: Watch) -> None:
    assert len(off.gradients) == len(auto.gradients) > 0
    largest = max(x.abs().max().item() for step in off.gradients for x in step.values())
    assert largest > 1e-3
    for left, right in zip(off.gradients, auto.gradients, strict=True):
        assert left.keys() == right.keys()
        for name, x in left.items():
            torch.testing.assert_close(right[name], x, rtol=0, atol=1e-6 * max(1.0, largest), msg=name)


TREE = {"rollouts": "tree", "tree_branching": [3, 2], "tree_segment_length": 4, "num_generations": 8}
MASKED = {"token_mask": "probability", "probability_threshold": 0.5}
CASES = {
    "grpo": ("grpo", {}),
    "reference": ("grpo", {"beta": 0.1}),
    "two iterations": ("dapo", {"num_iterations": 2, "beta": 0.0}),
    "s_trace": ("s_trace", {"beta": 0.05}),
    "grpo_lambda": ("grpo_lambda", {"loss_weight_confidence": False}),
    "gspo": ("gspo", {}),
    "luspo": ("base", {"loss_type": "luspo", "importance": "sequence"}),
    "vespo": ("base", {"loss_type": "vespo"}),
    "difficulty": ("ha_dw", {}),
    "mask": ("base", {**MASKED, "loss_type": "dapo", "beta": 0.1}),
    "mask of the code": ("base", {**MASKED, "loss_type": "grpo", "beta": 0.1, "mask_normalizer": "code"}),
    "prompts": ("base", {"loss_type": "dapo", "prompt_average": True, "beta": 0.1}),
    "whitened batch": ("base", {"whiten_advantages": "batch"}),
    "chain": ("spo_chain", {"rollouts_per_state": 2, "cutpoint_interval": 2}),
    "tree": ("spo_tree", {k: v for k, v in TREE.items() if k != "rollouts"}),
    "paths": ("base", {**TREE, "tree_rows": "paths", "loss_type": "dapo"}),
    "packed": ("base", {**TREE, "tree_rows": "packed", "loss_type": "dapo", "beta": 0.1}),
    "truncated": ("base", {"mask_truncated_completions": True, "loss_type": "dr_grpo"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_window_is_the_same_for_fewer_tokens(run, case):
    algo, settings = CASES[case]
    (_, off), (trainer, auto) = (run(length_sort, algo, **settings) for length_sort in ("off", "auto"))
    assert trainer._padding.window == 4
    check_equal(off, auto)
    assert auto.tokens(trained=True) < 0.9 * off.tokens(trained=True)
    if not trainer.args.rollouts == "tree":  # whose passes without a gradient are trimmed in any case
        assert auto.tokens(trained=False) < 0.9 * off.tokens(trained=False)


def test_the_gradient_of_a_window_with_lora(run):
    found = []
    for length_sort in ("off", "auto"):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        trainer, watch = run(length_sort, "s_trace", beta=0.1, trainer_kwargs={"peft_config": config})
        assert all("lora" in name for step in watch.gradients for name in step)
        found.append(watch)
    assert trainer._padding.window == 4
    check_equal(*found)


def test_off_is_trl_to_the_last_bit_and_auto_to_rounding(run):
    settings = {"beta": 0.04, "num_iterations": 2, "loss_type": "dapo"}
    theirs, seen = run("trl", (trl.GRPOConfig, trl.GRPOTrainer), **settings)
    off, of_off = run("off", **settings)
    auto, of_auto = run("auto", **settings)
    assert of_off.shapes == seen.shapes
    for name, p in theirs.model.named_parameters():
        assert torch.equal(off.model.get_parameter(name), p), name
        torch.testing.assert_close(auto.model.get_parameter(name), p, rtol=0, atol=1e-6)
    check_equal(seen, of_auto)


def test_the_tokens_of_a_window_are_those_of_the_longest_rows(run):
    trainer, watch = run("auto", max_steps=2, beta=0.0, prompts=[f"{i}+{j}=" for i in range(4) for j in range(2)])
    batches = trainer._buffered_inputs
    trained = [shape for grad, shape in watch.shapes if grad]
    lengths = [[int(n) for n in batch["completion_mask"].sum(1)] for batch in batches]
    for window in (lengths[:4], lengths[4:]):
        rows = [n for batch in window for n in batch]
        assert rows == sorted(rows, reverse=True) and len(set(rows)) > 1
    for batch, shape in zip(batches, trained, strict=True):
        longest = [int(batch[f"{part}_mask"].sum(1).max()) for part in ("prompt", "completion")]
        assert shape == (2, sum(longest))
        sizes = {name: tuple(x.shape) for name, x in batch.items() if isinstance(x, torch.Tensor) and x.dim() == 2}
        for name in ("prompt_ids", "prompt_mask"):
            assert sizes.pop(name) == (2, longest[0])
        assert sizes and all(shape == (2, longest[1]) for shape in sizes.values()), sizes


def test_logs_are_the_same(run):
    found = []
    for length_sort in ("off", "auto"):
        trainer, _ = run(length_sort, "s_trace", beta=0.05, log_credit=1, num_iterations=2)
        found.append((trainer.state.log_history, [read_shard(p) for _, p in steps(trainer.args.output_dir)]))
    (log, shards), (other_log, other_shards) = found
    names = [
        *("loss", "grad_norm", "num_tokens", "frac_reward_zero_std", "completions/mean_length"),
        *("reward", "reward_std", "reward_min", "reward_max", "completions/clipped_ratio"),
        *("credit/groups_without_signal", "credit/unique_responses", "credit/trained_tokens_per_row"),
    ]
    for left, right in zip(log, other_log, strict=True):
        assert left.keys() == right.keys()
        for name in set(names) & set(left):
            assert right[name] == pytest.approx(left[name], rel=1e-4, abs=1e-6), name
    assert len(shards) == len(other_shards) > 0
    for left, right in zip(shards, other_shards, strict=True):
        assert left.header["settings"] == right.header["settings"]
        assert len(left.responses) == len(right.responses) == 16
        for row, other in zip(left.responses, right.responses, strict=True):
            assert row.keys() == other.keys()
            for name, value in row.items():
                if isinstance(value, (list, float)) and name not in ("tokens", "token_ids"):
                    value = pytest.approx(value, rel=1e-4, abs=1e-5)
                assert other[name] == value, name


def test_metrics_of_windows_of_one_micro_batch_are_the_same(run):
    sizes = {"gradient_accumulation_steps": 1, "steps_per_generation": 8, "max_steps": 8, "beta": 0.05}
    logs = [run(length_sort, "s_trace", **sizes)[0].state.log_history for length_sort in ("off", "auto")]
    for left, right in zip(*logs, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            if value is not None and not any(word in name for word in ("time", "second", "flos")):
                assert right[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize(("algo", "settings"), [("ha_dw", {"beta": 0.05}), ("spo_tree", {"tree_branching": [3, 2]})])
def test_resumed_is_uninterrupted(run, tmp_path, algo, settings):
    saves = {**settings, "save_strategy": "steps", "save_steps": 2, "max_steps": 4, "lr_scheduler_type": "constant"}
    if algo == "spo_tree":
        saves |= {"tree_segment_length": 4, "num_generations": 8}
    whole, _ = run("auto", algo, **{**saves, "output_dir": str(tmp_path / "whole")})
    run("auto", algo, **{**saves, "max_steps": 2})
    resumed, _ = run("auto", algo, resume=True, **saves)
    assert whole._padding.window == 4 and resumed.state.global_step == 4
    for name, p in whole.model.named_parameters():
        assert torch.equal(resumed.model.get_parameter(name), p), name
    states = [Path(t.args.output_dir) / "checkpoint-4" / "credit_state.json" for t in (whole, resumed)]
    assert states[0].read_bytes() == states[1].read_bytes()


def test_a_run_may_be_resumed_with_the_other_setting(run):
    saves = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    trainer, _ = run("off", **saves)
    folder = trainer.args.output_dir
    resumed, _ = run("auto", resume=True, output_dir=folder, **{**saves, "max_steps": 6})
    assert resumed.state.global_step == 6


RULES = {
    "bnpo": ({"loss_type": "bnpo"}, "loss_type='bnpo'"),
    "entropy": ({"entropy_coef": 0.1}, "entropy bonus"),
    "whitened": ({"whiten_advantages": "microbatch"}, "whiten_advantages='microbatch'"),
    "quantile": ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
    "windows": ({"steps_per_generation": 6, "gradient_accumulation_steps": 4}, "do not divide each other"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rows_stay_where_a_loss_compares_them(run, caplog, rule):
    settings, said = RULES[rule]
    (_, off), (trainer, auto) = (run(length_sort, **settings) for length_sort in ("off", "auto"))
    check_equal(off, auto)
    assert auto.tokens(trained=True) < off.tokens(trained=True)
    check_said(caplog, said)
    assert trainer._padding.window == 1


def check_said(caplog, words) -> None:
    lines = [r.getMessage() for r in caplog.records if "length_sort='auto'" in r.getMessage()]
    assert len(lines) == 1 and words in lines[0], lines


def compares(config, tokens):
    return trl_credit.assign_credit(config, tokens)


class OwnMethod(trl_credit.CreditTrainer):
    def credit(self, tokens):
        return trl_credit.assign_credit(self.args, tokens)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"credit": compares}, "credit of your own"),
        ({"importance": "eligible", "selector": "random"}, "selector='random'"),
        ({"neftune_noise_alpha": 5.0}, "dropout or noise"),
    ],
    ids=["credit", "selector", "noise"],
)
def test_rows_stay_where_it_is_not_known_to_be_right(make_trainer, caplog, settings, said):
    assert make_trainer(**SIZES, **settings)._padding.window == 1
    check_said(caplog, said)


def test_rows_stay_with_a_credit_method_of_ones_own(make_trainer, caplog):
    assert make_trainer((trl_credit.CreditConfig, OwnMethod), **SIZES)._padding.window == 1
    check_said(caplog, "credit of your own")


def test_rows_stay_with_dropout(make_trainer, caplog):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    trainer = make_trainer(**SIZES, trainer_kwargs={"peft_config": config})
    assert trainer._padding.window == 1 and trainer._padding.trims
    check_said(caplog, "dropout")


def test_dropout_that_is_no_module_is_found(make_trainer):
    model = make_trainer().model
    assert not padding.is_random(model)
    model.model.layers[1].self_attn.attention_dropout = 0.1
    assert padding.is_random(model)


@pytest.fixture
def save_model(tiny_model, tmp_path):
    """Saves a model with the tiny one's tokenizer, and returns its folder."""

    def save(model):
        model.save_pretrained(tmp_path / "model")
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def test_rows_stay_with_an_auxiliary_loss(run, save_model, tiny_model, caplog):
    folder = save_model(tiny_qwen3_moe(AutoTokenizer.from_pretrained(tiny_model)))
    (_, off), (trainer, auto) = (run(length_sort, model=folder) for length_sort in ("off", "auto"))
    assert trainer._padding.window == 1
    check_equal(off, auto)
    check_said(caplog, "experts")


def test_absolute_positions_keep_the_padding_of_prompts(run, save_model, tiny_model, caplog):
    torch.manual_seed(0)
    tokens = len(AutoTokenizer.from_pretrained(tiny_model))
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ids = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.2}
    config = GPT2Config(vocab_size=tokens, n_positions=64, n_embd=32, n_layer=2, n_head=2, **no_dropout, **ids)
    folder = save_model(GPT2LMHeadModel(config))
    (_, off), (trainer, auto) = (run(length_sort, model=folder) for length_sort in ("off", "auto"))
    assert trainer._padding.window == 4
    check_equal(off, auto)
    assert auto.tokens(trained=True) < off.tokens(trained=True)
    check_said(caplog, "leaves the padding of prompts")


def test_positions_by_the_length_of_a_batch_leave_all_padding(run, save_model, tiny_model, caplog):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    folder = save_model(model)
    (_, off), (trainer, auto) = (run(length_sort, model=folder, max_steps=2) for length_sort in ("off", "auto"))
    assert not trainer._padding.trims and auto.shapes == off.shapes
    check_said(caplog, "leaves the padding, on which")


def test_widths_are_rounded_up_where_that_is_asked_for(run, monkeypatch):
    trainer, watch = run("auto", pad_to_multiple_of=8, max_steps=2)
    widths = {batch["completion_ids"].size(1) for batch in trainer._buffered_inputs}
    prompts = {batch["prompt_ids"].size(1) for batch in trainer._buffered_inputs}
    assert len(widths) > 1 and all(width % 8 == 0 for width in widths | prompts)
    rule = trainer._padding
    rule._multiple = padding.OF_ACCELERATORS
    there = padding.Span(200, 150)
    assert rule.width([padding.Span(1, 64), padding.Span(65, 0)], there) == (128, 64)
    assert rule.width([padding.Span(3, 65), padding.Span(193, 129)], there) == (200, 150)  # no further than there is
    assert rule.width([padding.Span(0, 0)], there) == (64, 64)


def test_images_that_are_not_one_for_each_row_keep_rows_in_their_place():
    ids = torch.arange(4).view(2, 2)
    batch = {"prompt_ids": ids, "num_items_in_batch": torch.tensor(3), "old_per_token_logps": None}
    assert row_order.is_by_row(batch)
    assert row_order.is_by_row(batch | {"pixel_values": torch.zeros(2, 3), "num_images": [1, 1]})
    assert not row_order.is_by_row(batch | {"pixel_values": torch.zeros(2, 3), "num_images": [2, 0]})
    assert not row_order.is_by_row(batch | {"pixel_values": torch.zeros(8, 3), "num_images": [1, 1]})


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
    spans = row_order.rows_of(batch["prompt_mask"], batch["completion_mask"])[0]
    spans = [padding.Span(row.prompt, row.response) for row in spans]
    assert spans == [(2, 2), (3, 1)]
    kept = {name: batch[name] for name in ("pixel_values", "advantages", "importance_sampling_ratio")}
    for are_columns, types in ((True, [[0, 5, 5, 4, 5], [4, 4, 4, 4, 0]]), (False, [[0, 7, 7, 6, 7], [6, 6, 6, 6, 0]])):
        found = row_order.trimmed(batch, padding.Span(3, 2), are_columns=are_columns)
        assert found["token_type_ids"].tolist() == types
        assert found["prompt_ids"].tolist() == [[2, 3, 4], [7, 8, 9]]
        assert found["completion_ids"].tolist() == [[0, 1], [4, 5]]
        assert all(found[name] is x for name, x in kept.items())
    one = {"a": torch.tensor([1, 2]), "b": ["x", "y"], "n": torch.tensor(3)}
    two = {"a": torch.tensor([3, 4]), "b": ["z", "w"], "n": torch.tensor(3)}
    turned = [(x["a"].tolist(), x["b"], x["n"].item()) for x in row_order.reordered([one, two], [3, 0, 2, 1])]
    assert turned == [([4, 1], ["w", "x"], 3), ([3, 2], ["z", "y"], 3)]


def test_the_order_is_that_of_trl_where_nothing_is_gained():
    span = padding.Span
    assert row_order.cheapest_order([span(4, 2), span(4, 2), span(4, 2)], 1) == [0, 1, 2]
    assert row_order.cheapest_order([span(4, 1), span(4, 9), span(4, 2), span(4, 9)], 2) == [1, 3, 2, 0]
    # by response 2 · (20 + 5) + 2 · (20 + 4) tokens, by row 2 · (20 + 4) + 2 · (1 + 5)
    assert row_order.cheapest_order([span(1, 5), span(20, 4), span(1, 4), span(20, 1)], 2) == [1, 3, 0, 2]


@pytest.mark.parametrize("lora", [False, True])
def test_a_row_has_the_positions_that_it_has_in_trl(make_trainer, lora):
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False) if lora else None
    trainer = make_trainer(trainer_kwargs={"peft_config": config})
    trainer.model.double()  # all that is left to round are the angles of positions, in float32 by number
    ids = torch.randint(3, 18, (4, 120), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row, (first, last) in enumerate(((60, 120), (95, 104), (97, 111), (99, 110))):
        mask[row, :first], mask[row, last:] = 0, 0
    given = {"batch_size": 2, "compute_entropy": True}
    theirs = trl.GRPOTrainer._get_per_token_logps_and_entropies
    with torch.no_grad():
        whole = theirs(trainer, trainer.model, ids, mask, 20, **given)
        watch = Watch(trainer)
        ours = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 20, **given)
    assert [shape for _, shape in watch.shapes] == [(2, 60), (2, 14)]
    inside = mask[:, -20:].bool()
    for left, right in zip(ours[:2], whole[:2], strict=True):
        assert (left[~inside] == 0).all()
        torch.testing.assert_close(left[inside], right[inside], rtol=0, atol=2e-7)


def test_a_setting_that_is_none(make_trainer):
    with pytest.raises(ValueError, match="length_sort must be one of 'auto', 'off', got 'on'"):
        make_trainer(length_sort="on")
