"""`trl-credit plan`: its formulas against real models and real runs, and what the command prints."""

import json
import sys
from statistics import fmean

import pytest
import torch
from passes_helpers import with_slow
from peft import LoraConfig, get_peft_model
from segment_helpers import steps_of
from tiny_models import QWEN3
from torch.utils.flop_counter import FlopCounterMode, mm_flop
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from trl.trainer.utils import add_fused_lm_head

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings
from trl_credit.lab.plan import Assumed, formulas, make_plan, read_shape
from trl_credit.lab.plan.formulas import Layout
from trl_credit.lab.plan.shapes import manual_shape, shape_of
from trl_credit.passes import flops
from trl_credit.settings.arguments import parse_arguments


SIZES = {**QWEN3, "vocab_size": 500, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3}
FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
PLAIN = Layout(1)
# what the counter does not know: products that are added to a tensor in place, in the fused head's backward pass
IN_PLACE = {torch.ops.aten.addmm_: lambda self, a, b, *others, out_shape=None, **named: mm_flop(a, b)}


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
def test_parameters_of_a_configuration(family):
    config = FAMILIES[family](**SIZES)
    model, shape = model_of(config), shape_of(config)
    assert shape.parameters == shape.trained == sum(p.numel() for p in model.parameters())
    linear = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in name]
    assert shape.matrix == sum(m.weight.numel() for m in linear)
    assert shape.head == model.lm_head.weight.numel() and shape.has_head_norms == (family == "qwen3")


def test_parameters_of_the_embedded_model_and_of_adapters():
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    shape = read_shape(demo_model_path())
    assert shape.parameters == sum(p.numel() for p in model.parameters())  # tied ones once
    assert shape.trained == shape.parameters and not shape.is_adapted
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted, counted = get_peft_model(model, adapter), read_shape(demo_model_path(), adapter=adapter)
    assert counted.trained == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert counted.parameters == sum(p.numel() for p in adapted.parameters()) and counted.is_adapted


def test_a_token_goes_through_some_of_the_experts():
    moe = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
    shape = shape_of(Qwen3MoeConfig(**SIZES, **moe))
    experts = 3 * 3 * 32 * 64 * 8  # layers, matrices
    router, attention = 3 * 64 * 8, 3 * 64 * 16 * (2 + 1 + 1 + 2)
    assert shape.matrix == experts // 4 + router + attention


ADAPTER = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
PASSES = [(family, checkpointing, None) for family in FAMILIES for checkpointing in (False, True)]


@pytest.mark.parametrize(("family", "checkpointing", "adapter"), [*PASSES, ("qwen3", False, ADAPTER)])
def test_operations_are_those_that_torch_counts(family, checkpointing, adapter):
    config = FAMILIES[family](**SIZES)
    model, shape, of = model_of(config), shape_of(config, adapter=adapter), flops.rows_pass(3, length=40, scored=39)
    if adapter is not None:
        model = get_peft_model(model, adapter)
    else:
        with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as forward, torch.no_grad():
            scored(model)
        assert forward.get_total_flops() == shape.cost.forward(of)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as both:
        scored(model).backward()
    computed = formulas.training_flops(shape, of, checkpointing=checkpointing)
    # a layer that is computed again stops at its last saved tensor; of adapters the first layer has nothing before it
    slack = 0.06 if checkpointing else 1e-9 if adapter is None else 0.08
    assert both.get_total_flops() == pytest.approx(computed, rel=slack)
    assert adapter is not None or both.get_total_flops() <= computed


def test_memory_of_weights_gradients_and_optimizer_is_that_of_the_tensors():
    model = model_of(FAMILIES["qwen3"](**SIZES))
    optimizer = torch.optim.AdamW(model.parameters())
    scored(model).backward()
    found = formulas.memory(shape_of(model.config), PLAIN, tokens=120, scored=117)
    assert found["gradients"] == sum(p.grad.numel() * p.grad.element_size() for p in model.parameters())
    optimizer.step()
    assert found["weights"] == sum(p.numel() * p.element_size() for p in model.parameters())
    moments = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    assert found["optimizer state"] == sum(x.numel() * x.element_size() for x in moments)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
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


def test_sharding_divides_what_it_says():
    shape = manual_shape("1.5B", layers=28, hidden=1536, vocabulary=None)
    n = shape.parameters

    def held(kind: str, **changes) -> dict[str, float]:
        settings = {"reference": True, "checkpointing": True, "weight_bytes": 4, "compute_bytes": 2, **changes}
        return formulas.memory(shape, Layout(8, kind, optimizer="adamw_torch", **settings), tokens=1000, scored=500)

    ddp, zero2, zero3, fsdp = (held(kind) for kind in ("ddp", "zero2", "zero3", "fsdp"))
    held_by_ddp = [ddp[name] for name in ("weights", "gradients", "optimizer state", "buckets of DDP")]
    assert held_by_ddp == [4 * n, 4 * n, 8 * n, 4 * n]
    # DeepSpeed has weights in 16 bits, and a copy in 32 beside the moments
    assert (zero2["weights"], zero2["gradients"], zero2["optimizer state"]) == (2 * n, 2 * n / 8, 12 * n / 8)
    assert (zero3["weights"], zero3["reference"]) == (2 * n / 8, 2 * n / 8) and zero2["reference"] == 2 * n
    assert (fsdp["weights"], fsdp["gradients"], fsdp["optimizer state"]) == (4 * n / 8, 4 * n / 8, 8 * n / 8)
    assert "reference" not in held("zero3", reference=False)
    assert "optimizer state" not in held("zero3", offloads=("optimizer",))


# Tokens against real runs

CHAIN = {"rollouts": "chain", "rollouts_per_state": 2, "loss_type": "grpo"}
TREE = {"rollouts": "tree", "tree_segment_length": 3, "loss_type": "dapo"}
SETTINGS = {
    "plain": {},
    "plain, two windows": {"steps_per_generation": 2},
    "plain, reference": {"beta": 0.1, "gradient_accumulation_steps": 2},
    "fixed_length": {**CHAIN, "segmentation": "fixed_length", "segment_length": 3},
    "fixed_count": {**CHAIN, "segmentation": "fixed_count", "num_segments": 3},
    "cutpoints": {**CHAIN, "segmentation": "cutpoints", "cutpoint_interval": 2},
    "some cutpoints": {**CHAIN, "segmentation": "cutpoints", "num_segments": 3},
    "masked cutpoints": {**CHAIN, "segmentation": "cutpoints", "cutpoint_interval": 2, "token_mask": "probability"},
    "steps": {**CHAIN, "segmentation": "steps", "max_valued_steps": 2, "initial_value": "group"},
    "tree": {**TREE, "tree_branching": [3, 2, 2]},
    "packed tree": {**TREE, "tree_branching": [2, 2, 2], "tree_rows": "packed"},
}
EXACT = ("plain", "plain, two windows", "plain, reference", "fixed_length", "tree")


def planned(trainer, **assumed):
    shape = read_shape(trainer.model.config._name_or_path)
    return make_plan(trainer.args, shape, PLAIN, Assumed(**assumed))


def generated_by(trainer) -> float:
    """Tokens per generation batch, mean over a run's."""
    found = 0.0
    rows = [row for row in steps_of(trainer) if "completions/mean_length" in row]
    for row in rows:
        whole = row["completions/mean_length"] * trainer.args.generation_batch_size
        found += {"tree": 0.0}.get(trainer.args.rollouts, whole) + row.get("credit/rollout_tokens", 0.0)
    return found / len(rows)


def counted(trainer) -> list[float]:
    """Tokens without padding that go through the models, with and without a gradient."""
    tokens = [0.0, 0.0]

    def count(module, args, kwargs):
        if kwargs.get("fused_lm_head"):
            tokens[not torch.is_grad_enabled()] += kwargs["attention_mask"].sum().item()

    for model in filter(None, (trainer.model, trainer.ref_model)):
        model.register_forward_pre_hook(count, with_kwargs=True)
    return tokens


@pytest.mark.parametrize(
    "name", with_slow(SETTINGS, "plain, two windows", "fixed_count", "cutpoints", "some cutpoints")
)
def test_a_run_of_full_responses_generates_what_is_the_most(make_trainer, name):
    rich = {"temperature": 3.0, "generation_kwargs": {"suppress_tokens": [0, 1]}}  # of characters that no row shares
    trainer = make_trainer(**SETTINGS[name], **rich, max_steps=2, max_completion_length=12)
    tokens = counted(trainer)
    trainer.train()
    plan = planned(trainer, prompt=4, longest_prompt=4, response=12)
    found = generated_by(trainer)
    assert found <= plan.generated.most
    if name in EXACT:
        assert found == plan.generated.most == plan.generated.mean
    if trainer.args.rollouts == "tree":
        return  # nodes without an advantage are in no row
    steps = 2 * plan.batches_per_step
    assert tokens[0] == steps * plan.passes["loss"].most == steps * plan.passes["loss"].mean
    others = [plan.passes[key].mean for key in ("old", "reference") if key in plan.passes]
    assert tokens[1] == (sum(others) if name == "plain, two windows" else steps * sum(others))


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["s_trace", "spo_chain", "vine_ppo", "spo_tree"])
def test_no_run_of_the_embedded_task_generates_more(algo, tmp_path):
    config_class, trainer_class = ALGORITHMS[algo]
    sizes = {"per_device_train_batch_size": 16, "max_steps": 2, "logging_steps": 1, "save_strategy": "no"}
    settings = demo_settings(config_class, **sizes, seed=0)
    config = config_class(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, **settings)
    trainer = trainer_class(demo_model_path(), demo_reward, config, train_dataset=demo_dataset(seed=0))
    trainer.results.writes_at_end = False
    trainer.train()
    found, plan = generated_by(trainer), planned(trainer, prompt=14, longest_prompt=14, response=36)
    assert 0 < found <= plan.generated.most
    if algo in ("s_trace", "spo_tree"):
        assert found == pytest.approx(plan.generated.mean, rel=0.05)


def test_shared_starts_and_places():
    # three groups of four over two processes of six rows each: the second group lies on both
    sizes = ((6, 4, 2), (12, 4, 1), (2, 4, 2))
    assert [formulas.prompts_on(*size) for size in sizes] == [4, 3, 2]
    assert formulas.every(3, length=10) == [0, 3, 6] and formulas.every(3, length=10, last=True) == [0, 3, 6, 9]
    assert formulas.every(5, length=1) == [0]
    size = formulas.tree_size([6, 6, 6], segment=600, length=1800)
    assert (size.nodes, size.leaves, size.tokens) == (258, 216, 258 * 600)
    # a token of level d sees the prompt and d segments, as attention counts them
    pairs = sum(6**d * 600 * (100 + d * 600) for d in (1, 2, 3))
    assert size.squares(100) == 100 * 100 + pairs and size.squares(100, rows=8) == 8 * 100 * 100 + pairs
    assert formulas.tree_size([2, 2], segment=5, length=3)[:2] == (2, 6)  # ended in the first segment


# The command


def test_the_embedded_recipe_as_lines_and_as_json(plan_said):
    code, text, _ = plan_said("--algo", "s_trace", "--json")
    plan = json.loads(text)
    assert code == 0 and plan["model"]["parameters"] == read_shape(demo_model_path()).parameters
    assert plan["step"]["generated tokens"] == {"mean": 64 * 20, "most": 64 * 40} and plan["seconds"] is None
    assert plan["optimizer_steps"] == 200 and plan["step"]["prompts"]["mean"] == 8
    code, text, _ = plan_said("--algo", "s_trace", "--tokens_per_second", 1280, "--tflops", 1)
    assert code == 0 and max(map(len, text.splitlines())) <= 120
    assert "generation                                     1.000" in text and "not known: rewards" in text
    assert "assumed:" in text and "half of the most (--response_length)" in text
    _, text, _ = plan_said("embedded", "--prompts", 100)
    assert "no seconds without rates" in text and "seconds, by" not in text


def test_a_recipe_by_name_on_several_gpus_without_its_configuration(plan_said):
    recipe = ["s_trace/qwen3_8b_s_trace", "--parameters", "8.19B", "--layers", 36, "--hidden_size", 4096]
    plans = {}
    for n, config in ((1, "single_gpu"), (4, "zero3"), (4, "multi_gpu")):
        code, text, error = plan_said(*recipe, "--num_processes", n, "--accelerate_config", config, "--json")
        assert code == 0, error
        plans[config] = json.loads(text)
    small, large = plans["single_gpu"], plans["zero3"]
    assert large["step"]["responses"]["mean"] == 4 * small["step"]["responses"]["mean"] == 128
    assert large["memory_bytes"]["weights"] == 2 * 8.19e9 / 4
    assert plans["multi_gpu"]["memory_bytes"]["weights"] == 4 * 8.19e9
    assert any("vLLM" in note for note in large["assumed"])


def test_prompt_and_response_fit_into_the_context_of_vllm(plan_said):
    shape = ["--parameters", "1.5B", "--layers", 28, "--hidden_size", 1536, "--accelerate_config", "single_gpu"]
    code, text, error = plan_said("spo/r1_distill_math_tree_2k", *shape)
    assert code == 0, error
    assert "4 rows of 2,048 tokens" in text  # and not 512 + 2048


def test_groups_need_not_fill_the_rows_of_one_gpu(plan_said):
    # four rows of a group of eight: as `train` on one process it is refused, and on two it is right
    sizes = ["--algo", "grpo", "--per_device_train_batch_size", 4, "--num_generations", 8]
    assert plan_said(*sizes)[0] == 2
    code, text, _ = plan_said(*sizes, "--num_processes", 2, "--json")
    assert code == 0 and json.loads(text)["step"]["responses"]["mean"] == 8


@pytest.mark.slow
def test_rates_of_a_run_give_its_seconds_back(plan_said, tmp_path):
    from trl_credit.cli.training import build

    sizes = ["--algo", "grpo", "--max_steps", "6", "--per_device_train_batch_size", "16", "--logging_steps", "2"]
    sizes += ["--steps_per_generation", "2", "--output_dir", str(tmp_path / "run")]
    trainer, _ = build([*sizes, "--disable_tqdm", "true"], command=["trl-credit", "train"])
    trainer.train()
    rows = steps_of(trainer)
    phases = ("generate", "rewards", "passes", "train")
    assert all(row[f"credit/seconds/{phase}"] > 0 for row in rows for phase in phases)
    code, text, error = plan_said(*sizes[:-2], "--rates_from", tmp_path / "run", "--json")
    assert code == 0, error
    plan = json.loads(text)
    later = rows[1:]
    spent = {p: sum(row[f"credit/seconds/{p}"] for row in later) / len(later) for p in phases}
    # of two optimizer steps one generates, as many tokens as all rows of the log say
    each = {p: seconds / (1 if p == "train" else 2) for p, seconds in spent.items()}
    lengths = [row["completions/mean_length"] for row in rows]
    expected = each | {"generate": each["generate"] * fmean(lengths) / fmean(lengths[1:])}
    assert sum(plan["seconds"].values()) == pytest.approx(sum(expected.values()), rel=1e-6)
    train = spent["train"]
    assert plan["seconds"]["training"] == pytest.approx(train, rel=1e-6)
    assert plan["step"]["generated tokens"]["mean"] == pytest.approx(16 * sum(lengths) / len(lengths))
    # rates are per GPU: on four of them four times the rows take as long
    _, text, _ = plan_said(*sizes[:-2], "--rates_from", tmp_path / "run", "--num_processes", 4, "--json")
    assert json.loads(text)["seconds"]["training"] == pytest.approx(train, rel=1e-6)


@pytest.mark.slow
def test_every_recipe_can_be_planned():
    from trl_credit.settings.recipes import all_recipes

    shape = manual_shape("1.5B", layers=28, hidden=1536, vocabulary=None)
    for name, row in all_recipes().items():
        if row.folder == "sft" or row.flags or name.startswith("embedded"):  # which go over another
            continue
        choices = parse_arguments(["--config", name], processes=row.about.get("gpus", 1))
        plan = make_plan(choices.args, shape, PLAIN, Assumed(prompts=1000))
        prompts = row.about.get("prompts_per_batch")
        assert prompts in (None, plan.prompts), name
        assert plan.generated.mean <= plan.generated.most and plan.steps >= 1, name


def test_the_formulas_need_nothing_but_numbers():
    import ast
    import inspect

    for module, others in ((formulas, {"passes.flops"}), (flops, set())):
        imported = {
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.parse(inspect.getsource(module)).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert imported <= set(sys.stdlib_module_names) | {"collections.abc"} | others


def test_phases_are_those_of_training(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.model.eval()
    with trainer._meter.timed("generate"), trainer._meter.timed("rewards"):
        pass
    assert trainer._meter.timer.seconds == {}
    trainer.model.train()
    trainer.train()
    (row,) = steps_of(trainer)
    phases = {name for name in row if name.startswith("credit/seconds/")}
    assert phases == {f"credit/seconds/{phase}" for phase in ("generate", "rewards", "train")}  # and no other pass


def test_no_limit_of_a_response_is_the_rest_of_the_context(make_trainer):
    trainer = make_trainer("grpo")
    shape, plans = shape_of(trainer.model.config), []
    for most in (shape.context, None):
        trainer.args.max_completion_length = most
        plans.append(make_plan(trainer.args, shape, PLAIN, Assumed()))
    assert shape.context == 1024 and plans[0].memory == plans[1].memory
    assert "max_completion_length=None: the rest of a context of 1,024 tokens" in plans[1].notes
