"""`from_trl`: what was set in a configuration of TRL, over all of its fields."""

import copy
from dataclasses import dataclass, fields

import pytest
import trl
from accelerate import ParallelismConfig
from custom_functions import args_of
from passes_helpers import with_slow

import trl_credit
from trl_credit import ALGORITHMS, CreditConfig, CreditTrainer, GRPOConfig, STraceConfig
from trl_credit.config import defaults
from trl_credit.config.from_trl import settings_of_trl


CLASSES = {"base": CreditConfig, **{name: pair[0] for name, pair in ALGORITHMS.items()}}
EVALUATION = {"eval_strategy": "steps", "eval_steps": 4, "num_generations_eval": 4}
BEST = {**EVALUATION, "load_best_model_at_end": True, "save_steps": 4, "metric_for_best_model": "accuracy"}
VLLM = {"use_vllm": True}
SERVER = {**VLLM, "vllm_mode": "server"}
SAPO, VESPO = {"loss_type": "sapo"}, {"loss_type": "vespo"}
REFERENCE = {"beta": 0.3}
ENTROPY = {"use_adaptive_entropy": True}
SHOWN = {"log_completions": True}
BATCHING = {"use_transformers_continuous_batching": True}
# field of TRL → a value that is not its default, and fields that it needs; `given_with` makes up the others
VALUES = {
    "output_dir": ("other", {}),
    "per_device_train_batch_size": (16, {}),
    "lr_scheduler_type": ("cosine", {}),
    "lr_scheduler_kwargs": ('{"num_cycles": 2}', {"lr_scheduler_type": "cosine_with_restarts"}),
    "optim": ("sgd", {}),
    "optim_args": ("a=1", {}),
    "optim_target_modules": (["q_proj"], {}),
    "bf16": (False, {}),
    "fp16": (True, {}),
    "fp16_full_eval": (True, {}),
    "gradient_checkpointing_kwargs": ({"use_reentrant": False}, {}),
    "torch_compile_backend": ("eager", {"torch_compile": True}),
    "torch_compile_mode": ("reduce-overhead", {"torch_compile": True}),
    "liger_kernel_config": ({"rope": True}, {}),
    "neftune_noise_alpha": (5.0, {}),
    "torch_empty_cache_steps": (2, {}),
    "logging_strategy": ("epoch", {}),
    "include_num_input_tokens_seen": (True, {}),
    "log_level": ("info", {}),
    "log_level_replica": ("error", {}),
    "disable_tqdm": (True, {}),
    "report_to": (["tensorboard"], {}),
    "eval_strategy": ("epoch", {"num_generations_eval": 4}),
    "eval_steps": (4, EVALUATION),
    "eval_delay": (2, EVALUATION),
    "per_device_eval_batch_size": (16, EVALUATION),
    "num_generations_eval": (2, EVALUATION),
    "eval_accumulation_steps": (2, EVALUATION),
    "do_eval": (True, {}),
    "include_for_metrics": (["inputs"], {}),
    "save_strategy": ("epoch", {}),
    "hub_strategy": ("end", {}),
    "load_best_model_at_end": (True, BEST),
    "metric_for_best_model": ("length", BEST),
    "greater_is_better": (False, BEST),
    "warmup_steps": (5, {}),
    "weight_decay": (0.1, {}),
    "adam_beta1": (0.8, {}),
    "adam_beta2": (0.95, {}),
    "label_smoothing_factor": (0.1, {}),
    "max_steps": (7, {}),
    "use_cpu": (True, {}),
    "accelerator_config": ({"split_batches": False, "even_batches": False}, {}),
    "dataloader_pin_memory": (False, {"use_cpu": False, "bf16": False}),
    "dataloader_prefetch_factor": (3, {"dataloader_num_workers": 2}),
    "dataloader_multiprocessing_context": ("spawn", {}),
    "dataloader_persistent_workers": (True, {"dataloader_num_workers": 2}),
    "remove_unused_columns": (True, {}),
    "label_names": (["a"], {}),
    "train_sampling_strategy": ("sequential", {}),
    "debug": ("underflow_overflow", {}),
    "fsdp": (True, {}),
    "fsdp_config": ({"fsdp_min_num_params": 3}, {"fsdp": True}),
    "trackio_static_space_id": (False, {}),
    "model_init_kwargs": ({"dtype": "float32"}, {}),
    "router_aux_loss_coef": (0.1, {}),
    "num_generations": (4, {}),
    "pad_to_multiple_of": (64, {}),
    "steps_per_generation": (4, {"gradient_accumulation_steps": 2}),
    "generation_batch_size": (32, {"gradient_accumulation_steps": 2}),
    "temperature": (0.7, {}),
    "top_p": (0.9, {}),
    "min_p": (0.1, {}),
    "generation_kwargs": ({"num_beams": 1}, {}),
    "chat_template_kwargs": ('{"enable_thinking": false}', {}),
    "cache_implementation": ("static", {}),
    "vllm_mode": ("server", VLLM),
    "vllm_model_impl": ("transformers", VLLM),
    "vllm_enable_sleep_mode": (True, VLLM),
    "vllm_structured_outputs_regex": ("a+", VLLM),
    "vllm_server_base_url": ("http://localhost:8", SERVER),
    "vllm_server_host": ("localhost", SERVER),
    "vllm_server_port": (8001, SERVER),
    "vllm_server_timeout": (3.0, SERVER),
    "vllm_group_port": (51000, SERVER),
    "vllm_gpu_memory_utilization": (0.5, VLLM),
    "vllm_max_model_length": (512, VLLM),
    "vllm_tensor_parallel_size": (2, VLLM),
    "vllm_importance_sampling_correction": (False, VLLM),
    "vllm_importance_sampling_mode": ("token_mask", VLLM),
    "vllm_importance_sampling_clip_max": (2.0, VLLM),
    "vllm_importance_sampling_clip_min": (0.5, VLLM),
    "vllm_importance_sampling_cap": (2.0, {**VLLM, "vllm_importance_sampling_clip_max": 2.0}),
    "epsilon_high": (0.3, {}),
    "delta": (2.0, {}),
    "beta": (0.04, {}),
    "sapo_temperature_neg": (1.2, SAPO),
    "sapo_temperature_pos": (1.2, SAPO),
    "vespo_k_pos": (1.5, VESPO),
    "vespo_lambda_pos": (1.5, VESPO),
    "vespo_k_neg": (1.5, VESPO),
    "vespo_lambda_neg": (1.5, VESPO),
    "importance_sampling_level": ("sequence", {}),
    "reward_weights": ([1.0, 0.5], {}),
    "multi_objective_aggregation": ("normalize_then_sum", {}),
    "scale_rewards": (False, {}),
    "loss_type": ("bnpo", {}),
    "sync_ref_model": (True, REFERENCE),
    "ref_model_mixup_alpha": (0.5, {**REFERENCE, "sync_ref_model": True}),
    "ref_model_sync_steps": (64, {**REFERENCE, "sync_ref_model": True}),
    "use_bias_correction_kl": (False, REFERENCE),
    "top_entropy_quantile": (0.2, {}),
    "entropy_coef": (0.1, {}),
    "entropy_coef_min": (0.1, ENTROPY),
    "entropy_coef_max": (0.5, ENTROPY),
    "entropy_coef_delta": (0.1, ENTROPY),
    "entropy_target": (0.5, ENTROPY),
    "max_tool_calling_iterations": (3, {}),
    "off_policy_mask_threshold": (0.5, {}),
    "log_multimodal": (False, SHOWN),
    "log_unique_prompts": (True, SHOWN),
    "num_completions_to_print": (2, SHOWN),
    "log_completions_hub_repo": ("me/log", SHOWN),
    "transformers_continuous_batching_config": ({"a": 1}, BATCHING),
    "use_transformers_paged": (True, BATCHING),
}
# what cannot be built on every machine, or is refused by TRL: set afterwards, as TRL stores it
STORED = {
    "tf32": True,
    "ddp_backend": "gloo",
    "auto_find_batch_size": True,
    "deepspeed": {"zero_optimization": {"stage": 3}},
    "parallelism_config": ParallelismConfig(),
}
TRL_FIELDS = [f.name for f in fields(trl.GRPOConfig) if f.init]


def given_with(name: str) -> dict:
    """Arguments of a configuration in which a field of TRL has another value than TRL's default."""
    default = defaults(trl.GRPOConfig)[name]
    if name in VALUES:
        value, beside = VALUES[name]
    elif isinstance(default, bool) or default is None and name.startswith("ddp_") or name == "hub_private_repo":
        value, beside = not default, {}
    elif isinstance(default, (int, float)):
        value, beside = default + 1, {}
    else:
        value, beside = (3 if name in ("data_seed", "save_total_limit") else "text"), {}
    assert value != default, f"{name}: give a value in VALUES that is not TRL's default"
    return {"output_dir": "unused", "use_cpu": True, **beside, name: value}


def outcome(make) -> dict | str:
    """All fields of the configuration that is made, or the message of its refusal."""
    try:
        return values_of(make())
    except ValueError as error:
        return str(error)


def values_of(config) -> dict:
    return {f.name: getattr(config, f.name) for f in fields(config)}


# field → the one that transformers or TRL keeps equal to it, and under which it is found
SAID_BY_ANOTHER = {
    "generation_batch_size": "steps_per_generation",
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}


@pytest.fixture(scope="module")
def set_one_by_one(monkeypatch_module) -> dict[str, tuple[dict, trl.GRPOConfig]]:
    """Field of TRL → the arguments in which it is set, and TRL's configuration of them."""
    found = {}
    for name in TRL_FIELDS:
        if name not in STORED:
            given = given_with(name)
            found[name] = given, trl.GRPOConfig(**copy.deepcopy(given))
    return found


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # transformers sets it for fsdp=True
        yield patch


@pytest.mark.parametrize("name", CLASSES)
def test_what_was_left_out_has_the_presets_default(name):
    args = trl.GRPOConfig("unused", use_cpu=True)
    assert settings_of_trl(args) == {"output_dir": "unused", "use_cpu": True}
    assert outcome(lambda: CLASSES[name].from_trl(args)) == outcome(lambda: CLASSES[name]("unused", use_cpu=True))


def test_every_field_that_was_set_is_found_and_no_other(set_one_by_one):
    assert set_one_by_one.keys() | STORED.keys() == {*TRL_FIELDS}
    for name, (given, args) in set_one_by_one.items():
        found = settings_of_trl(args)
        expected = {field for field in given if given[field] is not False or field != "use_cpu"}
        if name == "fsdp":
            expected |= {"fsdp_config"}  # which transformers fills in
        if name in SAID_BY_ANOTHER:
            expected = expected - {name} | {SAID_BY_ANOTHER[name]}
        assert {*found} == expected, name
        assert all(value == getattr(args, field) for field, value in found.items())


@pytest.mark.parametrize("name", with_slow(CLASSES, *CLASSES.keys() - {"base", "grpo", "s_trace", "spo_tree"}))
def test_a_configuration_of_trl_becomes_the_preset_that_is_built_by_hand(name, set_one_by_one):
    accepted = 0
    for field, (given, args) in set_one_by_one.items():
        by_hand = outcome(lambda given=given: CLASSES[name](**copy.deepcopy(given)))
        assert outcome(lambda args=args: CLASSES[name].from_trl(args)) == by_hand, field
        if isinstance(by_hand, str):
            # `importance` replaces TRL's `importance_sampling_level`
            assert any(part.removesuffix("_sampling_level") in by_hand for part in given), by_hand
        else:
            accepted += 1
            if field not in ("output_dir", "importance_sampling_level"):
                assert by_hand[field] == getattr(args, field), field
    assert accepted > len(set_one_by_one) - 25


@pytest.mark.parametrize("name", STORED)
def test_what_was_set_afterwards_is_found_as_well(name):
    args = trl.GRPOConfig("unused", use_cpu=True)
    setattr(args, name, STORED[name])
    assert settings_of_trl(args) == {"output_dir": "unused", "use_cpu": True, name: STORED[name]}


def test_what_trl_computed_from_a_field_follows_the_knob_that_replaces_it():
    args = trl.GRPOConfig("unused", use_cpu=True, eval_strategy="steps", load_best_model_at_end=True, save_steps=10)
    assert (args.eval_steps, args.metric_for_best_model, args.greater_is_better) == (10, "loss", False)
    taken = STraceConfig.from_trl(
        args, logging_steps=5, metric_for_best_model="accuracy", per_device_train_batch_size=16
    )
    assert (taken.eval_steps, taken.metric_for_best_model, taken.greater_is_better) == (5, "accuracy", True)
    assert (taken.generation_batch_size, taken.steps_per_generation) == (16, 1)
    args = trl.GRPOConfig("unused", use_cpu=True, steps_per_generation=4)
    assert STraceConfig.from_trl(args, generation_batch_size=16).steps_per_generation == 2


def test_knobs_win_and_keep_trls_defaults():
    args = trl.GRPOConfig("unused", use_cpu=True, beta=0.04, learning_rate=3e-6)
    taken = STraceConfig.from_trl(args, loss_type="dapo", trace_lambda=0.5)
    assert (taken.beta, taken.learning_rate, taken.loss_type, taken.trace_lambda) == (0.04, 3e-6, "dapo", 0.5)
    assert (taken.selector, taken.use_bias_correction_kl) == ("entropy", False)
    assert STraceConfig.from_trl(args, beta=0.0).beta == 0.0


def test_the_source_is_left_as_it_is():
    given = {
        "model_init_kwargs": {"dtype": "float32", "inner": {"a": [1]}},
        "accelerator_config": {"even_batches": False},
        "reward_weights": [1.0],
    }
    args = trl.GRPOConfig("unused", use_cpu=True, **copy.deepcopy(given))
    before = copy.deepcopy(values_of(args))
    taken = STraceConfig.from_trl(args)
    taken.model_init_kwargs["inner"]["a"].append(2)
    taken.accelerator_config.even_batches = True
    taken.reward_weights.append(2.0)
    assert values_of(args) == before and args.model_init_kwargs == given["model_init_kwargs"]


@dataclass
class MyGRPOConfig(trl.GRPOConfig):
    beta: float = 0.02
    extra: int = 3


@dataclass
class MySTraceConfig(STraceConfig):
    extra: int = 0


def test_a_subclass_of_trls_configuration():
    args = MyGRPOConfig("unused", use_cpu=True)
    assert STraceConfig.from_trl(args).beta == 0.02
    args = MyGRPOConfig("unused", use_cpu=True, extra=5)
    with pytest.raises(TypeError, match="MyGRPOConfig that sets extra, which STraceConfig lacks: .* in a subclass of"):
        STraceConfig.from_trl(args)
    assert MySTraceConfig.from_trl(args).extra == 5


@pytest.mark.parametrize(
    "args, message",
    [
        (lambda: trl.SFTConfig("unused", use_cpu=True), "args is of type SFTConfig, not a GRPOConfig of TRL: give the"),
        (lambda: {"beta": 0.1}, "args is of type dict, not a GRPOConfig of TRL"),
        (lambda: trl.GRPOConfig, "args is the class GRPOConfig, not a GRPOConfig of TRL"),
        (
            lambda: args_of(GRPOConfig),
            "args is a GRPOConfig of trl_credit, .*: give its settings to STraceConfig",
        ),
    ],
)
def test_what_is_no_configuration_of_trl_is_refused(args, message):
    with pytest.raises(TypeError, match=message):
        STraceConfig.from_trl(args())


def test_a_field_without_effect_is_named_and_an_unknown_knob_is_refused(caplog):
    args = trl.GRPOConfig("unused", use_cpu=True, vllm_gpu_memory_utilization=0.5, max_grad_norm=None)
    assert STraceConfig.from_trl(args).max_grad_norm == 0.0
    assert caplog.text.count("vllm_gpu_memory_utilization=0.5 does nothing, since use_vllm=False") == 1
    with pytest.raises(TypeError, match="has no field 'trace_lamda': did you mean 'trace_lambda'"):
        STraceConfig.from_trl(trl.GRPOConfig("unused", use_cpu=True), trace_lamda=0.5)


def test_a_trainer_names_the_way_from_trls_configuration(tmp_path):
    args = trl.GRPOConfig(str(tmp_path), use_cpu=True)
    with pytest.raises(TypeError, match=r"no credit knobs: pass CreditConfig.from_trl\(args\), or a CreditConfig"):
        CreditTrainer("unused", reward_funcs=len, args=args, train_dataset=None)


def test_a_trainer_refuses_the_configuration_of_another_algorithm(tmp_path):
    class MySTraceConfig(STraceConfig):
        pass

    where = {"output_dir": str(tmp_path), "use_cpu": True}
    for args, fix in (
        (trl_credit.GSPOConfig(**where), "build a STraceConfig, or train with GSPOTrainer"),
        (trl_credit.CreditConfig(**where), "build a STraceConfig, or train with CreditTrainer"),
        (GRPOConfig(**where), "build a STraceConfig, or train with GRPOTrainer"),
    ):
        with pytest.raises(TypeError, match=f"args is a {type(args).__name__}, which is not of this .*: {fix}"):
            trl_credit.STraceTrainer("unused", reward_funcs=len, args=args, train_dataset=None)
    with pytest.raises(TypeError, match="build a GRPOConfig, or train with STraceTrainer"):
        trl_credit.GRPOTrainer("unused", reward_funcs=len, args=MySTraceConfig(**where), train_dataset=None)
