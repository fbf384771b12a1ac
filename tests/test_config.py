"""Knobs: defaults of the presets, ranges, and the combinations that are refused with the fix in the message."""

import dataclasses

import pytest
from trl import TrlParser

from trl_credit import ALGORITHMS, CreditConfig


def make(config_class=CreditConfig, **settings):
    return config_class(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **settings)


def test_published_settings():
    expected = {
        "grpo": {"loss_type": "grpo", "importance": "token", "epsilon": 0.2},
        "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "p_trace": {"importance": "eligible", "selector": "none", "trace_lambda": 0.9, "gamma": 1.0, "beta": 0.001},
        "s_trace": {"importance": "eligible", "selector": "entropy", "selective_rate": 0.2, "leave_own_out": True},
        "grpo_lambda": {"importance": "lambda_trace", "trace_lambda": 0.99, "advantage_floor": -0.1, "beta": 0.04},
        "gspo": {"importance": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
        "gspo_token": {"importance": "sequence_token", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
        "ha_dw": {"difficulty": "history", "difficulty_scale": 1.3, "difficulty_window": 10},
        "opo": {"baseline": "optimal", "scale_rewards": "none"},
    }
    assert set(expected) == set(ALGORITHMS)
    for name, fields in expected.items():
        config = make(ALGORITHMS[name][0])
        assert {key: getattr(config, key) for key in fields} == fields, name
        if config.has_trace:
            assert config.use_bias_correction_kl is False
    assert make().reward_range == (0.0, 1.0)


def test_citations_are_bibtex():
    assert ALGORITHMS["p_trace"][1]._paper["citation"].splitlines() == [
        "@article{mou2026beyond,",
        "    title  = {{Beyond Uniform Credit Assignment: Selective Eligibility Traces for RLVR}},",
        "    author = {Chaoli Mou and Zhan Zhuang and Xinning Chen and Yu Zhang},",
        "    year   = {2026},",
        "    eprint = {arXiv:2605.05965},",
        "}",
    ]


def test_presets_carry_name_tags_and_paper():
    names = set()
    for name, (config_class, trainer_class) in ALGORITHMS.items():
        assert trainer_class.config_class is config_class
        assert trainer_class._paper["id"] in trainer_class._paper["citation"]
        assert name.replace("_", "-") in trainer_class._tag_names
        names.add(trainer_class._name)
    assert len(names) == len(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_any_knob_on_any_preset(name):
    config = make(ALGORITHMS[name][0], difficulty="history", advantage_floor=-0.5, baseline="optimal", loss_type="dapo")
    assert (config.difficulty, config.baseline) == ("history", "optimal")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"importance": "x"}, "importance must be one of"),
        ({"selector": "x"}, "selector must be one of"),
        ({"trace_style": "x"}, "trace_style must be one of"),
        ({"loss_weight": "x"}, "loss_weight must be one of"),
        ({"token_mask": "x"}, "token_mask must be one of"),
        ({"baseline": "x"}, "baseline must be one of"),
        ({"difficulty": "x"}, "difficulty must be one of"),
        ({"trace_lambda": 1.01}, "trace_lambda must be in"),
        ({"trace_lambda": float("nan")}, "trace_lambda must be in"),
        ({"gamma": -0.1}, "gamma must be in"),
        ({"selective_rate": 1.2}, "selective_rate must be in"),
        ({"probability_threshold": 0.0}, "probability_threshold must be positive"),
        ({"difficulty_scale": 0.0}, "difficulty_scale must be positive"),
        ({"difficulty_window": 0}, "difficulty_window must be at least 1"),
        ({"difficulty_rate": -1.0}, "difficulty_rate must be positive"),
        ({"difficulty_rate_min": 2.0}, "difficulty_rate_min must be in"),
        ({"difficulty_threshold": -0.1}, "difficulty_threshold must be in"),
        ({"advantage_floor": float("inf")}, "advantage_floor must be finite"),
        ({"epsilon": 1.0}, "epsilon must be in"),
        ({"epsilon_high": -0.1}, "epsilon_high must be >= 0"),
        ({"reward_range": (1.0, 0.0)}, "reward_range must be two finite numbers"),
        ({"reward_range": (0.0, 1.0, 2.0)}, "reward_range must be two finite numbers"),
        ({"importance_sampling_level": "sequence"}, "importance='sequence'"),
        ({"importance": "sequence", "token_mask": "probability"}, "importance='sequence_token'"),
        ({"importance": "sequence", "loss_weight": "trace_past"}, "importance='sequence_token'"),
        ({"importance": "sequence", "top_entropy_quantile": 0.2}, "importance='sequence_token'"),
        ({"selector": "entropy"}, "importance='eligible'"),
        ({"selector": "random", "importance": "lambda_trace"}, "importance='eligible'"),
        ({"importance": "eligible", "loss_type": "cispo"}, "set loss_type"),
        ({"importance": "lambda_trace", "loss_type": "vespo"}, "set loss_type"),
        ({"importance": "eligible", "loss_type": "sapo"}, "set loss_type"),
        ({"importance": "sequence_token", "loss_type": "vespo"}, "importance='token'"),
        ({"loss_type": "luspo"}, "importance='sequence'"),
        ({"importance": "eligible", "beta": 0.1}, "use_bias_correction_kl=False"),
        ({"baseline": "optimal", "multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"difficulty": "fixed", "multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
    ],
    ids=str,
)
def test_refusals_name_the_field_and_the_fix(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_the_command_line_reads_every_knob():
    (config,) = TrlParser(ALGORITHMS["ha_dw"][0]).parse_args_and_config(
        ["--output_dir", "unused", "--use_cpu", "True", "--bf16", "False", "--reward_range", "-1", "1"]
        + ["--advantage_floor", "-0.2", "--leave_own_out", "False", "--selective_rate", "0.3"]
    )
    assert config.reward_range == (-1.0, 1.0) and config.advantage_floor == -0.2
    assert config.leave_own_out is False and config.selective_rate == 0.3


def test_a_configuration_can_be_rebuilt_from_its_fields():
    for config_class, _ in ALGORITHMS.values():
        config = make(config_class)
        again = dataclasses.replace(config, generation_batch_size=None)
        assert again.importance == config.importance
