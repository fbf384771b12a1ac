"""`from_trl`: what was set in a configuration of TRL; and what a preset changes of TRL's defaults."""

import copy
import re
from dataclasses import dataclass, fields

import pytest
import trl
from custom_functions import args_of
from scripts import ROOT

import trl_credit
from trl_credit import ALGORITHMS, CreditConfig, CreditTrainer, DAPOConfig, GRPOConfig, GSPOConfig, STraceConfig
from trl_credit.config import defaults, settings_of_preset
from trl_credit.config.from_trl import changed_defaults, settings_of_trl


CLASSES = [CreditConfig, *(ALGORITHMS[name][0] for name in ("s_trace", "gspo", "fipo", "spo_tree"))]
BEST = {"eval_strategy": "steps", "load_best_model_at_end": True, "save_steps": 4, "eval_steps": 4}
BEST |= {"num_generations_eval": 4}
SETTINGS = [
    {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "num_generations": 4},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}', "warmup_steps": 5},
    {"bf16": False, "gradient_checkpointing": False},
    {"torch_compile_backend": "eager", "torch_compile_mode": "reduce-overhead"},
    {"report_to": ["tensorboard"], "logging_strategy": "epoch", "disable_tqdm": True, "debug": "underflow_overflow"},
    BEST,
    {**BEST, "metric_for_best_model": "length", "greater_is_better": False},
    {"accelerator_config": {"split_batches": False, "even_batches": False}},
    {"fsdp": True, "fsdp_config": {"fsdp_min_num_params": 3}},
    {"model_init_kwargs": {"dtype": "float32"}, "reward_weights": [1.0, 0.5], "seed": 7, "max_steps": 7},
    {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
    {"generation_batch_size": 32, "gradient_accumulation_steps": 2},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "generation_kwargs": {"num_beams": 1}, "pad_to_multiple_of": 64},
    {"use_vllm": True, "vllm_mode": "server", "vllm_server_port": 8001, "vllm_importance_sampling_correction": False},
    {"importance_sampling_level": "sequence"},
    {"scale_rewards": False, "multi_objective_aggregation": "normalize_then_sum", "top_entropy_quantile": 0.2},
]


def values_of(config) -> dict:
    return {f.name: getattr(config, f.name) for f in fields(config)}


def outcome(make) -> dict | str:
    """All fields of the configuration that is made, or the message of its refusal."""
    try:
        return values_of(make())
    except ValueError as error:
        return str(error)


@pytest.fixture(params=SETTINGS, ids=lambda settings: "-".join(settings))
def settings(request, monkeypatch) -> dict:
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # transformers sets it for fsdp=True
    return {"output_dir": "unused", "use_cpu": True, **request.param}


def test_what_was_set_makes_the_same_configuration_and_the_preset_that_is_built_by_hand(settings):
    args = trl.GRPOConfig(**copy.deepcopy(settings))
    before = copy.deepcopy(values_of(args))
    was_set = settings_of_trl(args)
    # which transformers fills in beside `fsdp`, and TRL keeps equal to `generation_batch_size`
    assert was_set.keys() <= settings.keys() | {"fsdp_config", "steps_per_generation"}
    assert values_of(trl.GRPOConfig(**copy.deepcopy(was_set))) == before == values_of(args)
    for config_class in CLASSES:
        by_hand = outcome(lambda: config_class(**copy.deepcopy(settings)))  # noqa: B023
        assert outcome(lambda: config_class.from_trl(args)) == by_hand  # noqa: B023


def test_what_trl_computed_from_a_field_follows_the_knob_that_replaces_it():
    args = trl.GRPOConfig("unused", use_cpu=True, eval_strategy="steps", load_best_model_at_end=True, save_steps=10)
    assert (args.eval_steps, args.metric_for_best_model, args.greater_is_better) == (10, "loss", False)
    knobs = {"logging_steps": 5, "metric_for_best_model": "accuracy", "per_device_train_batch_size": 16}
    taken = STraceConfig.from_trl(args, **knobs)
    assert (taken.eval_steps, taken.metric_for_best_model, taken.greater_is_better) == (5, "accuracy", True)
    assert (taken.generation_batch_size, taken.steps_per_generation) == (16, 1)
    args = trl.GRPOConfig("unused", use_cpu=True, steps_per_generation=4)
    assert STraceConfig.from_trl(args, generation_batch_size=16).steps_per_generation == 2


def test_knobs_win_and_keep_trls_defaults():
    args = trl.GRPOConfig("unused", use_cpu=True, beta=0.04, learning_rate=3e-6)
    args.tf32 = True  # set afterwards
    taken = STraceConfig.from_trl(args, loss_type="dapo", trace_lambda=0.5, tf32=None)
    assert (taken.beta, taken.learning_rate, taken.loss_type, taken.trace_lambda) == (0.04, 3e-6, "dapo", 0.5)
    assert settings_of_trl(args)["tf32"] is True


@dataclass
class MyGRPOConfig(trl.GRPOConfig):
    beta: float = 0.02
    extra: int = 3


@dataclass
class MySTraceConfig(STraceConfig):
    extra: int = 0


def test_a_subclass_of_trls_configuration():
    assert STraceConfig.from_trl(MyGRPOConfig("unused", use_cpu=True)).beta == 0.02
    args = MyGRPOConfig("unused", use_cpu=True, extra=5)
    with pytest.raises(TypeError, match="sets extra, which STraceConfig lacks"):
        STraceConfig.from_trl(args)
    assert MySTraceConfig.from_trl(args).extra == 5


@pytest.mark.parametrize("args", [lambda: {"beta": 0.1}, lambda: trl.GRPOConfig, lambda: args_of(GRPOConfig)])
def test_what_is_no_configuration_of_trl_is_refused(args):
    with pytest.raises(TypeError, match="^args is .*STraceConfig"):
        STraceConfig.from_trl(args())


def test_a_trainer_names_the_way_from_trls_configuration(tmp_path):
    with pytest.raises(TypeError, match=r"CreditConfig.from_trl\(args\)"):
        args = trl.GRPOConfig(str(tmp_path), use_cpu=True)
        CreditTrainer("unused", reward_funcs=len, args=args, train_dataset=None)
    for config_class, trainer_class in (("GSPO", "STrace"), ("Credit", "STrace"), ("STrace", "GRPO")):
        args = getattr(trl_credit, f"{config_class}Config")(output_dir=str(tmp_path), use_cpu=True)
        with pytest.raises(TypeError, match=f"build a {trainer_class}Config, or train with {config_class}Trainer"):
            getattr(trl_credit, f"{trainer_class}Trainer")("unused", reward_funcs=len, args=args, train_dataset=None)


# What a preset changes of TRL's defaults: in the configuration, in a run's first lines, and on the page


PRESETS = {"base": CreditConfig, **{name: pair[0] for name, pair in ALGORITHMS.items()}}
PAGE = (ROOT / "docs" / "coming_from_trl.md").read_text(encoding="utf-8")


def test_the_settings_of_a_preset_are_those_that_act_and_were_left_alone():
    assert settings_of_preset(args_of()) == {}
    changed = {"beta": (0.0, 0.001), "loss_type": ("dapo", "grpo"), "use_bias_correction_kl": (True, False)}
    assert settings_of_preset(args_of(STraceConfig)) == changed
    assert settings_of_preset(args_of(STraceConfig, beta=0.0)) == {"loss_type": ("dapo", "grpo")}
    assert settings_of_preset(args_of(STraceConfig, beta=0.04, loss_type="dapo")).keys() == {"use_bias_correction_kl"}
    assert settings_of_preset(args_of(GSPOConfig))["importance_sampling_level"] == ("token", "sequence")
    assert settings_of_preset(args_of(DAPOConfig, mask_truncated_completions=False)) == {"epsilon_high": (None, 0.28)}


@pytest.mark.parametrize("name", PRESETS)
def test_the_changed_defaults_are_the_fields_in_which_the_two_configurations_differ(name):
    plain, preset = trl.GRPOConfig("unused", use_cpu=True, bf16=False), args_of(PRESETS[name])
    names = defaults(trl.GRPOConfig).keys() - {"output_dir", "generation_batch_size"}  # that of `steps_per_generation`
    differ = {field: (getattr(plain, field), getattr(preset, field)) for field in names}
    assert changed_defaults(PRESETS[name]) == {field: pair for field, pair in differ.items() if pair[0] != pair[1]}


def test_the_pages_code_runs(here):
    by_hand, taken = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    scope: dict = {"args": trl.GRPOConfig("run", use_cpu=True, learning_rate=3e-6)}
    exec(taken, scope)
    assert (scope["args"].learning_rate, scope["args"].trace_lambda) == (3e-6, 0.95)
    exec(by_hand, scope)
    set_by_hand = changed_defaults(STraceConfig).keys() - settings_of_preset(scope["args"]).keys()
    assert set_by_hand == {"loss_type", "beta", "use_bias_correction_kl"}
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    after = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))
    before = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))
    assert after == before.replace("GRPO", "STrace").replace("from trl ", "from trl_credit ")
    compile(after, "after", "exec")
