"""Settings that mean nothing, and runs that have nothing to learn from."""

import math
from dataclasses import fields
from types import NoneType
from typing import get_args, get_type_hints

import pytest
from custom_functions import args_of

from trl_credit import CreditConfig
from trl_credit.config import CHOICES, KNOBS
from trl_credit.config.knobs import FLAG


NAN, INF = math.nan, math.inf
HINTS = get_type_hints(CreditConfig)  # not `Field.type`, which the parser of transformers changes
FLOATS = sorted(name for name, hint in HINTS.items() if hint in (float, float | None))
NO_NUMBER = ("0.5", [0.5], {}, True, 1j)


def refused(name: str, value: object, **more) -> None:
    """In one line of ours that begins with the field and shows what was given."""
    with pytest.raises(ValueError) as caught:
        args_of(**{name: value}, **more)
    assert str(caught.value).startswith((f"{name} ", f"{name}=")) and "\n" not in str(caught.value), str(caught.value)
    assert repr(value) in str(caught.value)


# fields with the values just outside of their ranges
SHARES = (-0.1, 1.1, INF, -INF)
COUNTS = (0, -3, 2.5, INF)
OUTSIDE = {
    "trace_lambda gamma selective_rate difficulty_rate_min difficulty_threshold top_entropy_quantile min_p": SHARES,
    "certain_tolerance adam_beta1 adam_beta2": (-0.1, 1.0, INF),
    "probability_threshold difficulty_scale difficulty_rate sapo_temperature_neg sapo_temperature_pos temperature "
    "repetition_penalty num_train_epochs": (0.0, -1.0, INF),
    "learning_rate adam_epsilon warmup_steps logging_steps": (-1e-9, INF),
    "advantage_floor truncated_value process_reward_weight state_weight entropy_coef beta weight_decay save_steps "
    "eval_steps save_total_limit": (INF, -INF),
    "delta": (0.0, -1.0),
    "epsilon epsilon_high dataloader_num_workers top_p": (-1e-9, -INF),
    "vllm_gpu_memory_utilization": (0.0, 1.1, INF),
    "difficulty_window log_credit_groups cutpoint_interval num_segments segment_length max_valued_steps "
    "rollouts_per_state rollout_batch_size tree_segment_length replay_iterations replay_cap "
    "process_reward_best_of max_copies max_refills teacher_sync_steps": COUNTS,
    "teacher_update_rate": (0.0, 1.1, INF),
    "prompt_floor": (-0.1, 0.26, INF),
    "retire_above step_gamma": SHARES,
    "nonfinite_patience log_credit": (-1, 0.5, 2.5, INF),
    "reward_timeout": (0.0, -1.0, -INF),
    "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation "
    "generation_batch_size num_iterations vllm_tensor_parallel_size ref_model_sync_steps": (0, -64),
    "max_completion_length": (0, -64),
    "num_generations": (0, 1),
    "seed": (-3, 2**32),
    "top_k": (-5,),
    "max_grad_norm": ("1",),
}
RANGES = {name: values for names, values in OUTSIDE.items() for name in names.split()}
# what makes a field of TRL act, where the defaults do not
ACTING = {
    "sapo_": {"loss_type": "sapo"},
    "vespo_": {"loss_type": "vespo"},
    "entropy_": {"use_adaptive_entropy": True},
    "vllm_": {"use_vllm": True},
    "ref_model_": {"beta": 0.1, "sync_ref_model": True},
}
FIELDS = {f.name for f in fields(CreditConfig)}


NUMBERS = {
    "NaN": [(name, NAN) for name in FLOATS if name in RANGES],
    "outside of its range": [(name, value) for name in RANGES if name in FIELDS for value in RANGES[name]],
    "no number": [
        (name, value)
        for name in RANGES.keys() & KNOBS.keys()
        for value in (*NO_NUMBER, *([] if NoneType in get_args(HINTS[name]) else [None]))
    ],
}


OTHERS = {
    "reward_weights": ([NAN], [1.0, INF], ["1"], [None], "1.0"),
    "reward_range": ([0.0, NAN], [1.0, 1.0], [1.0, 0.0], [0.0], [0.0, 1.0, 2.0], "01", 5, None, ["0", "1"]),
    "difficulty_reward": ([], "sums", [1], 5),
    "prompt_rates": ("", 5, ["rates.jsonl"], True),
    "tree_branching": ([6, 0], [6, 1.5], [], 6, None),
    "released_code": (["x"], "spo_replay", 5, [["spo_replay"]]),
    "loss_type": ("dapoo", "GRPO", None, ""),
    "credit": ("", 5, "grpo", ["f.py:g"]),
    **{name: ("no", 0, None) for name, knob in KNOBS.items() if knob.values is FLAG},
    **{name: ("", "None", "x", None, 0, ["none"]) for name in CHOICES if name != "released_code"},
    "teacher": ("", 0, ["policy"]),
    "teacher_prompt": ("", "x", 0, ["none"], "{prompt", "{}", "{prompt.text}", "{prompt!r:>{width}}"),
}
WRONG = NUMBERS | {name: [(name, value) for value in values] for name, values in OTHERS.items()}


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_value_of_a_setting(what, record_property):
    for name, value in WRONG[what]:
        refused(name, value, **next((more for start, more in ACTING.items() if name.startswith(start)), {}))
    record_property("tried", len(WRONG[what]))


LEGAL = [
    {"beta": 0, "temperature": 1, "gamma": 1, "importance": "eligible", "trace_lambda": 0},  # whole numbers
    {"epsilon": 10.0, "epsilon_high": INF, "delta": INF, "max_grad_norm": 0.0},  # no limit, as in TRL
    # as in TRL: no filter, no limit, no step, and the other way round
    {"top_k": None, "top_p": None, "repetition_penalty": None, "max_grad_norm": -1.0, "epsilon": INF},
    {"max_steps": 0, "save_steps": 0, "eval_steps": -1, "save_total_limit": 0, "num_generations_eval": 0},
    {"beta": -0.1, "weight_decay": -0.1, "data_seed": -3, "top_p": 1.1, "logging_strategy": "no"},
]


@pytest.mark.hostile("settings", "survived")
@pytest.mark.parametrize("settings", LEGAL, ids=str)
def test_odd_but_legal(settings):
    config = args_of(**settings)
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    assert {name: getattr(config, name) for name in kept} == kept


@pytest.mark.hostile("nothing to learn", "survived")
@pytest.mark.parametrize(("algo", "reward"), [("s_trace", None), ("spo_tree", 1.0)])
def test_it_is_said_with_every_kind_of_algorithm(make_trainer, caplog, algo, reward):
    def same(completions, **kwargs):
        return [reward] * len(completions)

    trainer = make_trainer(algo, reward_funcs=same, max_steps=5, beta=0.0)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    assert len([r for r in caplog.records if r.name.endswith("no_signal")]) == 2
    assert all((p == q).all() for p, q in zip(before, trainer.model.parameters(), strict=True))
