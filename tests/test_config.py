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
        "opo": {"baseline": "optimal", "scale_rewards": "none", "num_iterations": 1, "beta": 0.0},
        "spo_chain": {
            "rollouts": "chain",
            "loss_type": "grpo",
            "prompt_average": False,
            "segmentation": "cutpoints",
            "cutpoint_interval": 5,
            "rollouts_per_state": 9,
            "token_mask": "probability",
            "probability_threshold": 0.9,
            "num_iterations": 2,
            "beta": 1e-4,
            "whiten_advantages": "none",
        },
        "spo_tree": {
            "rollouts": "tree",
            "loss_type": "dapo",
            "prompt_average": True,
            "tree_branching": [6, 6, 6],
            "tree_segment_length": 30,
            "segment_advantage": "mean",
            "token_mask": "probability",
            "replay_iterations": 8,
            "replay_cap": 32,
            "num_iterations": 1,
            "beta": 1e-4,
        },
        "vine_ppo": {
            "rollouts": "chain",
            "loss_type": "grpo",
            "segmentation": "steps",
            "rollouts_per_state": 9,
            "token_mask": "none",
        },
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
    config = make(ALGORITHMS[name][0], difficulty="history", advantage_floor=-0.5, loss_type="dapo")
    assert (config.difficulty, config.advantage_floor) == ("history", -0.5)
    if config.rollouts == "none":
        assert make(ALGORITHMS[name][0], baseline="optimal", loss_type="dapo").baseline == "optimal"
    if config.importance != "sequence" and config.baseline == "group":  # which segments are refused with
        make(ALGORITHMS[name][0], rollouts="chain", replay_iterations=1)
        make(ALGORITHMS[name][0], rollouts="tree", mask_truncated_completions=False)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"importance": "x"}, "importance must be one of"),
        ({"selector": "x"}, "selector must be one of"),
        ({"trace_style": "x"}, "trace_style must be one of"),
        ({"loss_weight": "x"}, "loss_weight must be one of"),
        (
            {"loss_weight": "trace_past", "loss_weight_confidence": "yes"},
            "loss_weight_confidence must be True or False",
        ),
        ({"loss_weight_confidence": True}, "set loss_weight='trace_past'"),
        ({"clip_form": "x"}, "clip_form must be one of"),
        ({"clip_form": "ratio", "importance": "sequence"}, "Set importance='sequence_token'"),
        ({"clip_form": "ratio", "loss_type": "cispo"}, "Set loss_type='grpo' or"),
        ({"clip_form": "ratio", "loss_type": "luspo"}, "Set loss_type='grpo' or"),
        ({"clip_form": "ratio", "delta": 2.0}, "Set delta=None"),
        ({"clip_form": "ratio", "beta": 0.1}, "Set use_bias_correction_kl=False"),
        (
            {"clip_form": "ratio", "policy_loss": "policy_iteration", "beta": 0.1, "use_bias_correction_kl": False},
            "set policy_loss='clip'",
        ),
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
        ({"epsilon": -0.1}, "epsilon must be at least 0"),
        ({"epsilon": float("nan")}, "epsilon must be at least 0"),
        ({"epsilon_high": -0.1}, "epsilon_high must be >= 0"),
        ({"reward_range": (1.0, 0.0)}, "reward_range must be two finite numbers"),
        ({"reward_range": (0.0, 1.0, 2.0)}, "reward_range must be two finite numbers"),
        ({"importance_sampling_level": "sequence", "importance": "eligible"}, "importance='sequence'"),
        ({"importance": "sequence", "token_mask": "probability"}, "importance='sequence_token'"),
        ({"importance": "sequence", "loss_weight": "trace_past"}, "importance='sequence_token'"),
        ({"importance": "sequence", "top_entropy_quantile": 0.2}, "importance='sequence_token'"),
        ({"selector": "entropy"}, "importance='eligible'"),
        ({"selector": "random", "importance": "lambda_trace"}, "importance='eligible'"),
        ({"importance": "eligible", "loss_type": "cispo"}, "set loss_type"),
        ({"importance": "lambda_trace", "loss_type": "vespo"}, "set loss_type"),
        ({"importance": "eligible", "loss_type": "sapo"}, "set loss_type"),
        ({"importance": "sequence_token", "loss_type": "vespo"}, "importance='token'"),
        ({"loss_type": "luspo", "importance": "eligible"}, "importance='sequence'"),
        ({"importance": "eligible", "beta": 0.1}, "use_bias_correction_kl=False"),
        ({"baseline": "optimal", "multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"difficulty": "fixed", "multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"rollouts": "x"}, "rollouts must be one of"),
        ({"segmentation": "x"}, "segmentation must be one of"),
        ({"tree_branching": [6, 0]}, "tree_branching must be whole numbers of at least 1"),
        ({"tree_branching": [6, 1.5]}, "tree_branching must be whole numbers of at least 1"),
        ({"tree_branching": []}, "tree_branching must be whole numbers of at least 1"),
        ({"rollouts_per_state": 0}, "rollouts_per_state must be a whole number of at least 1"),
        ({"cutpoint_interval": 0}, "cutpoint_interval must be a whole number"),
        ({"num_segments": 0}, "num_segments must be a whole number of at least 1 or None"),
        ({"replay_iterations": 0}, "replay_iterations must be a whole number"),
        ({"certain_tolerance": 1.0}, "certain_tolerance must be in"),
        ({"truncated_value": float("nan")}, "truncated_value must be finite"),
        ({"rollouts": "tree", "tree_segment_length": 300}, "tree_segment_length"),
        ({"rollouts": "tree", "tree_segment_length": 128, "max_completion_length": 256}, "leave nothing"),
        ({"rollouts": "tree", "mask_truncated_completions": True}, "truncated_value"),
        ({"rollouts": "tree", "tree_rows": "paths", "loss_type": "grpo"}, "loss_type='dapo'"),
        ({"rollouts": "tree", "tree_rows": "paths", "importance": "eligible"}, "tree_rows='nodes'"),
        ({"rollouts": "tree", "tree_rows": "paths", "loss_weight": "trace_past"}, "tree_rows='nodes'"),
        ({"rollouts": "tree", "replay_legacy": True}, "replay_cap"),
        (
            {"rollouts": "chain", "segmentation": "fixed_length", "segment_length": 9, "max_completion_length": 9},
            "never",
        ),
        ({"rollouts": "chain", "segmentation": "fixed_count"}, "num_segments"),
        ({"rollouts": "chain", "segmentation": "steps", "step_splitter": "x"}, "unknown step_splitter"),
        ({"rollouts": "chain", "replay_iterations": 8}, "rollouts='tree'"),
        ({"rollouts": "chain", "importance": "sequence"}, "importance='sequence_token'"),
        ({"rollouts": "chain", "baseline": "optimal"}, "baseline='group'"),
        ({"rollouts": "chain", "loss_type": "vespo"}, "loss_type='dapo'"),
        ({"rollouts": "tree", "multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"process_reward_weight": 5.0}, "rollouts='chain' or 'tree'"),
        ({"policy_loss": "policy_iteration"}, "beta=0.1"),
        ({"policy_loss": "policy_iteration_code", "beta": 0.1, "token_mask": "probability"}, "token_mask='none'"),
        ({"prompt_average": True, "loss_type": "grpo"}, "prompt_average=True .*set loss_type='dapo'"),
        (
            {"rollouts": "tree", "tree_branching": [3, 2], "process_reward_weight": 1.0},
            r"process_reward_best_of=None .*tree_branching=\[3, 2\].*set process_reward_best_of",
        ),
        ({"rollouts": "chain", "process_reward_weight": 1.0, "process_reward_best_of": 0}, "or None, got 0"),
        ({"policy_loss": "policy_iteration", "beta": 0.1, "loss_type": "cispo"}, "loss_type='dapo'"),
        ({"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "probability"}, "token_mask='none'"),
        ({"policy_loss": "policy_iteration", "beta": 0.1, "importance": "sequence_token"}, "importance='token'"),
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
        + ["--importance", "eligible", "--selector", "entropy"]
    )
    assert config.reward_range == (-1.0, 1.0) and config.advantage_floor == -0.2
    assert config.leave_own_out is False and config.selective_rate == 0.3


def test_a_configuration_can_be_rebuilt_from_its_fields():
    for config_class, _ in ALGORITHMS.values():
        config = make(config_class)
        again = dataclasses.replace(config, generation_batch_size=None)
        assert again.importance == config.importance


def test_a_clip_range_that_never_clips_is_trls(tmp_path):
    """TRL's documentation sets epsilon=10 for DeepSeek-R1."""
    assert CreditConfig(output_dir=str(tmp_path), report_to="none", epsilon=10.0).epsilon == 10.0
