"""`trl-credit plan`: its formulas against real models and real runs, and what the command prints."""

import json

import pytest
import torch
from passes_helpers import with_slow
from segment_helpers import steps_of
from tiny_models import QWEN3
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from trl.trainer.utils import add_fused_lm_head

from trl_credit.demo import demo_model_path
from trl_credit.lab.plan import Assumed, formulas, make_plan, read_shape
from trl_credit.lab.plan.formulas import Layout
from trl_credit.lab.plan.shapes import known_sizes, manual_shape, shape_of
from trl_credit.passes.flops import cost_of, rows_pass
from trl_credit.settings.arguments import parse_arguments
from trl_credit.settings.files import read_settings
from trl_credit.settings.recipes import all_recipes


SIZES = {**QWEN3, "vocab_size": 500, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3}
FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
PLAIN = Layout(1)


def model_of(config, *, attention="eager"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.train()


def scored(model, rows=3, width=40):
    """Log-probabilities of all tokens but the first of each row, as a loss on a CPU has them made."""
    ids = torch.randint(3, model.config.vocab_size, (rows, width))
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
    return out.log_probs.sum()


# Formulas against real models


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_a_configuration_and_operations_of_a_pass(family):
    config = FAMILIES[family](**SIZES)
    model, shape = model_of(config), shape_of(config)
    assert shape.parameters == shape.trained == sum(p.numel() for p in model.parameters())
    linear = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in name]
    assert shape.matrix == sum(m.weight.numel() for m in linear)
    assert shape.head == model.lm_head.weight.numel() and shape.has_head_norms == (family == "qwen3")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        scored(model)
    assert counter.get_total_flops() == cost_of(config).forward(rows_pass(3, length=40, scored=39))


def test_memory_of_weights_gradients_and_optimizer_is_that_of_the_tensors():
    model = model_of(FAMILIES["qwen3"](**SIZES))
    optimizer = torch.optim.AdamW(model.parameters())
    scored(model).backward()
    optimizer.step()
    moments = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    weights, gradients = list(model.parameters()), [p.grad for p in model.parameters()]
    tensors = {"weights": weights, "gradients": gradients, "optimizer state": moments}
    sizes = formulas.memory(shape_of(model.config), PLAIN, tokens=120, scored=117)
    for name, held in tensors.items():
        assert sizes[name] == sum(x.numel() * x.element_size() for x in held)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_activations_are_about_those_that_are_kept(family, checkpointing):
    model = model_of(FAMILIES[family](**SIZES), attention="sdpa")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in weights and x.shape[-2:] != (100, 100):  # attention's mask
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = scored(model, rows=2, width=100)
    in_layer, of_input = formulas.activation_bytes(shape_of(model.config), PLAIN)
    counted = 200 * 3 * (of_input if checkpointing else in_layer)
    ends = 200 * 64 * 4 * 3  # of the last norm and the head
    assert sum(kept.values()) - ends == pytest.approx(counted, rel=0.12)
    del loss


def test_sharding_divides_the_memory():
    shape = manual_shape("1.5B", 28, 1536)
    settings = {"reference": True, "checkpointing": True, "weight_bytes": 4, "compute_bytes": 2}

    def held(kind: str, *names: str) -> list[float]:
        """Bytes per parameter."""
        sizes = formulas.memory(shape, Layout(8, kind, **settings), tokens=1000, scored=500)
        return [sizes[name] / shape.parameters for name in names]

    parts = ("weights", "gradients", "optimizer state", "reference")
    assert held("ddp", *parts, "buckets of DDP") == [4, 4, 8, 4, 4]
    # DeepSpeed has weights in 16 bits, and a copy in 32 beside the moments
    assert held("zero2", *parts) == [2, 2 / 8, 12 / 8, 2] and held("zero3", *parts) == [2 / 8, 2 / 8, 12 / 8, 2 / 8]
    assert held("fsdp", *parts) == [4 / 8, 4 / 8, 8 / 8, 4 / 8]
    settings |= {"copy_bytes": 4, "teacher": 3 * shape.parameters}  # a moving average, and another model
    scores = ("teacher", "policy, while the teacher scores")
    assert held("zero2", *scores) == [4 + 3 * 2, 2] and held("fsdp", *scores) == [(4 + 3 * 4) / 8, 4 / 8]
    offloaded = formulas.memory(shape, Layout(8, "zero3", offloads=("optimizer",)), tokens=1000, scored=500)
    assert not {"reference", "optimizer state"} & offloaded.keys()


# Tokens against real runs

CHAIN = {"rollouts": "chain", "rollouts_per_state": 2, "loss_type": "grpo"}
TREE = {"rollouts": "tree", "tree_segment_length": 3, "loss_type": "dapo"}
SETTINGS = {
    "two windows": {"steps_per_generation": 2},
    "reference": {"beta": 0.1, "gradient_accumulation_steps": 2},
    "teacher": {"credit": "trl_credit.presets.opd.OPD", "teacher": "reference", "beta": 0.1},
    "fixed_length": {**CHAIN, "segmentation": "fixed_length", "segment_length": 3},
    "fixed_count": {**CHAIN, "segmentation": "fixed_count", "num_segments": 3},
    "masked cutpoints": {**CHAIN, "segmentation": "cutpoints", "cutpoint_interval": 2, "token_mask": "probability"},
    "steps": {**CHAIN, "segmentation": "steps", "max_valued_steps": 2, "initial_value": "group"},
    "tree": {**TREE, "tree_branching": [3, 2, 2]},
    "packed tree": {**TREE, "tree_branching": [2, 2, 2], "tree_rows": "packed"},
}
EXACT = ("two windows", "reference", "teacher", "fixed_length", "tree")


def planned(trainer, **assumed):
    return make_plan(trainer.args, read_shape(trainer.model.config._name_or_path), PLAIN, Assumed(**assumed))


def generated_by(trainer) -> float:
    """Tokens per generation batch, mean over a run's."""
    rows = [row for row in steps_of(trainer) if "completions/mean_length" in row]
    rows_of_batch = 0 if trainer.args.rollouts == "tree" else trainer.args.generation_batch_size
    tokens = [row["completions/mean_length"] * rows_of_batch + row.get("credit/rollout_tokens", 0.0) for row in rows]
    return sum(tokens) / len(rows)


def counted(trainer) -> list[float]:
    """Tokens without padding that go through the models, with and without a gradient."""
    tokens = [0.0, 0.0]

    def count(module, args, kwargs):
        if kwargs.get("fused_lm_head"):
            tokens[not torch.is_grad_enabled()] += kwargs["attention_mask"].sum().item()

    for model in filter(None, (trainer.model, trainer.ref_model)):
        model.register_forward_pre_hook(count, with_kwargs=True)
    return tokens


@pytest.mark.parametrize("name", with_slow(SETTINGS, "two windows", "teacher", "fixed_count"))
def test_a_run_of_full_responses_generates_the_most(make_trainer, name):
    rich = {"temperature": 3.0, "generation_kwargs": {"suppress_tokens": [0, 1]}}  # of characters that no row shares
    trainer = make_trainer(**SETTINGS[name], **rich, max_steps=2, max_completion_length=12)
    tokens = counted(trainer)
    trainer.train()
    plan = planned(trainer, prompt=4, longest_prompt=4, response=12)
    generated, per_batch = plan.step["generated tokens"], 1 / plan.batches_per_step
    assert generated_by(trainer) <= generated.most * per_batch
    if name in EXACT:
        assert generated_by(trainer) == generated.most * per_batch == generated.mean * per_batch
    if trainer.args.rollouts == "tree":
        return  # nodes without an advantage are in no row
    passes = {key.rpartition(" ")[2]: tokens for key, tokens in plan.step.items() if "passes" in key}
    assert tokens[0] == 2 * passes["loss"].most == 2 * passes["loss"].mean
    others = sum(passes[key].mean for key in ("π_old", "reference", "teacher") if key in passes)
    assert tokens[1] == (others * per_batch if name == "two windows" else 2 * others)


def test_shared_starts_and_places():
    # three groups of four over two processes of six rows each: the second group lies on both
    sizes = ((6, 4, 2), (12, 4, 1), (2, 4, 2))
    assert [formulas.prompts_on(*size) for size in sizes] == [4, 3, 2]
    starts = formulas.segment_starts
    assert starts(3, length=10) == [0, 3, 6] and starts(3, length=10, last=True) == [0, 3, 6, 9]
    assert starts(5, length=1) == [0]
    size = formulas.tree_size([6, 6, 6], segment=600, length=1800)
    assert (size.nodes, size.leaves, size.tokens) == (258, 216, 258 * 600)
    assert formulas.tree_size([2, 2], segment=5, length=3)[:2] == (2, 6)  # ended in the first segment


# The command


def test_the_embedded_task_as_lines_and_as_json(plan_said):
    code, text, _ = plan_said("--algo", "s_trace", "--json")
    plan = json.loads(text)
    assert code == 0 and plan["model"]["parameters"] == read_shape(demo_model_path()).parameters
    assert plan["step"]["generated tokens"] == {"mean": 64 * 20, "most": 64 * 40}
    assert plan["optimizer_steps"] == 200 and plan["step"]["prompts"]["mean"] == 8
    code, text, _ = plan_said("--algo", "s_trace")
    assert code == 0 and "half of the most (--response_length)" in text


def test_rows_weights_and_vllm_on_several_gpus(plan_said):
    recipe = ["s_trace/qwen3_8b_s_trace", "--parameters", "8.19B", "--layers", 36, "--hidden_size", 4096, "--json"]
    layouts = ((1, "single_gpu"), (4, "zero3"), (4, "multi_gpu"))
    flags = [["--num_processes", n, "--accelerate_config", config] for n, config in layouts]
    plans = [json.loads(plan_said(*recipe, *words)[1]) for words in flags]
    assert [plan["step"]["responses"]["mean"] for plan in plans] == [32, 128, 128]
    assert [plan["memory_bytes"]["weights"] for plan in plans[1:]] == [2 * 8.19e9 / 4, 4 * 8.19e9]
    assert any("vLLM" in note for note in plans[1]["assumed"])
    assert "4 rows of 2,048 tokens" in plan_said("spo/r1_distill_math_tree_2k")[1]  # vLLM's context, not 512 + 2048
    # four rows of a group of eight: as `train` on one process it is refused, and on two it is right
    sizes = ["--algo", "grpo", "--per_device_train_batch_size", 4, "--num_generations", 8]
    assert plan_said(*sizes)[0] == 2 and plan_said(*sizes, "--num_processes", 2)[0] == 0


def test_the_pass_and_the_weights_of_a_teacher(plan_said):
    def planned(*words):
        return json.loads(plan_said("--json", "--algo", *words)[1])

    own, size = planned("rlsd"), read_shape(demo_model_path()).parameters
    assert own["step"]["tokens of passes: teacher"] == own["step"]["tokens of passes: loss"]
    assert own["memory_bytes"]["teacher"] == own["memory_bytes"]["policy, while the teacher scores"] == 4 * size
    told = planned("sdpo")["step"]  # a right response besides prompt and response
    assert told["tokens of passes: teacher"]["most"] == told["tokens of passes: loss"]["most"] + 64 * 40
    assert planned("opd")["memory_bytes"]["reference"] == 4 * size and "teacher" not in planned("opd")["memory_bytes"]
    known, unknown = (planned("opd", "--teacher", name) for name in ("Qwen/Qwen3-8B-Base", "no/body"))
    assert known["memory_bytes"]["teacher"] == 4 * PUBLISHED["Qwen/Qwen3-8B-Base"]
    assert "teacher" not in unknown["memory_bytes"] and any("no/body is unknown" in x for x in unknown["assumed"])


def test_gpus_of_the_command_line_and_of_a_configuration_come_first(plan_said):
    recipe = ["--config", "s_trace/qwen3_4b_s_trace"]
    text = plan_said(*recipe)[1]
    assert "S-trace on Qwen3-4B\n4.02 billion parameters" in text and "\n2 GPUs: a copy on each" in text
    for words, gpus in ((["--num_processes", 1], "1 GPU"), (["--accelerate_config", "zero2"], "8 GPUs")):
        assert f"\n{gpus}: " in plan_said(*recipe, *words)[1]


# Sizes without a configuration

# totals of the published weights, tied ones counted once
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen3-8B-Base": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B-Base": 30_532_122_624,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "deepseek-ai/deepseek-math-7b-base": 6_910_365_696,
}


def test_the_table_gives_the_published_parameters():
    assert {name: shape_of(known_sizes(name)[1]).parameters for name in PUBLISHED} == PUBLISHED


@pytest.mark.slow
def test_every_recipe_can_be_planned():
    shape = manual_shape("1.5B", 28, 1536)
    for name, row in all_recipes().items():
        model = read_settings([name])[0]["model_name_or_path"]
        assert model == "demo" or known_sizes(model) is not None, name
        if row.folder == "sft" or row.flags or name.startswith("embedded"):  # which go over another
            continue
        choices = parse_arguments(["--config", name], processes=row.about.get("gpus", 1))
        plan = make_plan(choices.args, shape, PLAIN, Assumed(prompts=1000))
        prompts = row.about.get("prompts_per_batch")
        assert prompts in (None, plan.step["prompts"].mean / plan.batches_per_step), name
        assert plan.step["generated tokens"].mean <= plan.step["generated tokens"].most and plan.steps >= 1, name


def test_a_folder_comes_before_the_table(here):
    folder = here / "Qwen" / "Qwen3-4B"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="no configuration of 'Qwen/Qwen3-4B'"):
        read_shape("Qwen/Qwen3-4B")  # a folder without config.json is a mistake, not the model of the Hub
    Qwen3Config(hidden_size=64, num_hidden_layers=2, vocab_size=500).save_pretrained(folder)
    shape = read_shape("Qwen/Qwen3-4B")
    assert (shape.hidden, shape.layers, shape.source) == (64, 2, None)
