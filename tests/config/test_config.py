"""Defaults of the presets, and the combinations that are refused with the fix in the message."""

import pytest
from custom_functions import args_of

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.config import trl_settings
from trl_credit.support.functions import names_alone


def test_published_settings():
    expected = {
        "grpo": {"loss_type": "grpo", "importance": "token", "epsilon": 0.2},
        "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "p_trace": {"importance": "eligible", "selector": "none", "trace_lambda": 0.9, "gamma": 1.0, "beta": 0.001},
        "s_trace": {"importance": "eligible", "selector": "entropy", "selective_rate": 0.2, "leave_own_out": True},
        "grpo_lambda": {"importance": "lambda_trace", "trace_lambda": 0.99, "advantage_floor": -0.1, "beta": 0.04},
        "fipo": {
            "loss_type": "dapo",
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "future_half_life": 32.0,
            "future_clip": [1.0, 1.2],
            "future_ratio_max": None,
            "steps_per_generation": 16,
        },
        "clip_cov": {
            "loss_type": "dapo",
            "epsilon": 1.0,
            "epsilon_high": 1.0,
            "cov_share": 2e-4,
            "cov_range": [1.0, 5.0],
            "steps_per_generation": 8,
        },
        "kl_cov": {"loss_type": "dapo", "cov_share": 2e-3, "cov_penalty": 1.0, "steps_per_generation": 8},
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
    differ = set(expected) ^ set(ALGORITHMS)
    assert not differ, f"`expected` and ALGORITHMS differ in {differ}: give here what the paper of each sets"
    for name, fields in expected.items():
        config = args_of(ALGORITHMS[name][0])
        assert {key: getattr(config, key) for key in fields} == fields, name
        if config.has_trace:
            assert config.use_bias_correction_kl is False
    assert args_of().reward_range == [0.0, 1.0]


def test_citations_are_bibtex():
    assert ALGORITHMS["p_trace"][1]._paper["citation"].splitlines() == [
        "@article{mou2026beyond,",
        "    title  = {{Beyond Uniform Credit Assignment: Selective Eligibility Traces for RLVR}},",
        "    author = {Chaoli Mou and Zhan Zhuang and Xinning Chen and Yu Zhang},",
        "    year   = {2026},",
        "    eprint = {arXiv:2605.05965},",
        "}",
    ]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_any_knob_on_any_preset(name):
    config = args_of(ALGORITHMS[name][0], difficulty="history", advantage_floor=-0.5, loss_type="dapo")
    assert (config.difficulty, config.advantage_floor) == ("history", -0.5)
    if config.rollouts == "none":
        assert args_of(ALGORITHMS[name][0], baseline="optimal", loss_type="dapo").baseline == "optimal"
    if config.importance != "sequence" and config.baseline == "group":  # which segments are refused with
        args_of(ALGORITHMS[name][0], rollouts="chain", replay_iterations=1)
        if not config.custom_functions():  # which decides itself
            args_of(ALGORITHMS[name][0], rollouts="tree", mask_truncated_completions=False)


VESPO, RATIO, CHAIN, TREE = {"loss_type": "vespo"}, {"clip_form": "ratio"}, {"rollouts": "chain"}, {"rollouts": "tree"}
PATHS, MANY = TREE | {"tree_rows": "paths"}, {"multi_objective_aggregation": "normalize_then_sum"}
ITERATION = {"policy_loss": "policy_iteration", "beta": 0.1}
WEIGHT, BOUND, DRIFT = {"loss_weight": "trace_past"}, {"td_upper_bound": True}, {"expert_drift": True}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"loss_weight_confidence": "tanh"}, "loss_weight_confidence='tanh' .* set loss_weight"),
        ({"loss_weight_confidence": True}, "loss_weight_confidence must be one of 'none', 'sigmoid'"),
        (WEIGHT | {"loss_weight_confidence": "tanh_grad", "loss_type": "cispo"}, "confidence=.*Set loss_type='grpo'"),
        (BOUND | {"importance": "sequence"}, "td_upper_bound=.*importance='sequence_token'.*Set td_upper_bound=False"),
        (BOUND | CHAIN, "td_upper_bound=True: .*Set rollouts='none'"),
        (BOUND | VESPO, "Set loss_type='dapo'"),
        (BOUND | ITERATION, "Set td_upper_bound=False"),
        (BOUND | {"torch_compile": True}, "Set torch_compile=False"),
        (DRIFT, "^expert_drift=True .*one update per batch: raise steps_per_generation or num_iterations"),
        (DRIFT | TREE, "expert_drift=True: .*Set rollouts='none'"),
        (DRIFT | {"behavior_logps": "sampler", "use_vllm": True}, "Set behavior_logps='recomputed'"),
        (DRIFT | {"num_iterations": 2, "torch_compile": True}, "Set torch_compile=False"),
        (RATIO | {"importance": "sequence"}, "importance='sequence' .*Set importance='sequence_token'"),
        (RATIO | {"loss_type": "cispo"}, "loss_type='cispo' .*Set loss_type='grpo' or"),
        (RATIO | {"loss_type": "luspo"}, "loss_type='luspo' .*Set loss_type='grpo' or"),
        (RATIO | {"delta": 2.0}, "Set delta=None"),
        (RATIO | {"beta": 0.1}, "Set use_bias_correction_kl=False"),
        (RATIO | ITERATION | {"use_bias_correction_kl": False}, "clip_form='ratio' .*set policy_loss='clip'"),
        ({"importance_sampling_level": "sequence", "importance": "eligible"}, "importance='sequence'"),
        ({"importance": "sequence", "token_mask": "probability"}, "token_mask=.*importance='sequence_token'"),
        ({"importance": "sequence", "loss_weight": "trace_past"}, "loss_weight=.*importance='sequence_token'"),
        ({"importance": "sequence", "top_entropy_quantile": 0.2}, "top_entropy_quantile=.*importance='sequence_token'"),
        ({"selector": "entropy"}, "Set importance='eligible'"),
        ({"selector": "random", "importance": "lambda_trace"}, "Set importance='eligible'"),
        ({"importance": "eligible", "loss_type": "cispo"}, "Set loss_type='dapo'"),
        (VESPO | {"importance": "lambda_trace"}, "Set loss_type='dapo'"),
        ({"importance": "eligible", "loss_type": "sapo"}, "Set loss_type='dapo'"),
        (VESPO | {"importance": "sequence_token"}, "Set importance='token'"),
        ({"loss_type": "luspo", "importance": "eligible"}, "Set importance='sequence'"),
        ({"loss_type": "luspo", "importance": "sequence_token"}, "Set importance='sequence'"),
        ({"importance": "eligible", "beta": 0.1}, "Set use_bias_correction_kl=False"),
        (MANY | {"baseline": "optimal"}, "Set multi_objective_aggregation='sum_then_normalize'"),
        (MANY | {"difficulty": "fixed"}, "Set multi_objective_aggregation='sum_then_normalize'"),
        (MANY | TREE, "Set multi_objective_aggregation='sum_then_normalize'"),
        ({"prompt_average": True, "loss_type": "grpo"}, "prompt_average=True.*Set loss_type='dapo'"),
        ({"behavior_logps": "sampler"}, "behavior_logps='sampler'.*Set use_vllm=True"),
        (TREE | {"tree_segment_length": 300}, "tree_segment_length"),
        (TREE | {"tree_segment_length": 128, "max_completion_length": 256}, "leave nothing"),
        (TREE | {"mask_truncated_completions": True}, "Set mask_truncated_completions=False"),
        (PATHS | {"loss_type": "grpo"}, "Set loss_type='dapo'"),
        (PATHS | {"importance": "eligible"}, "Set importance='token', or change .*tree_rows"),
        (PATHS | {"loss_weight": "trace_past"}, "Set loss_weight='none', or change .*tree_rows"),
        (PATHS | {"off_policy_mask_threshold": 0.5}, "Set off_policy_mask_threshold=None"),
        (TREE | {"tree_rows": "packed", "shared_prefix": "on"}, "Set shared_prefix='auto'"),
        (TREE | {"tree_branching": [3, 2], "process_reward_weight": 1.0}, r"process_reward_best_of=None .*=\[3, 2\]"),
        (TREE | {"released_code": ["spo_replay"]}, "set replay_cap to a whole number"),
        ({"released_code": ["spo_replay"]}, "rollouts='none' and replay_cap=None: set rollouts='tree' and replay_cap"),
        (CHAIN | {"released_code": ["spo_last_token", "spo_normalizer"]}, r"^released_code=\['spo_normalizer'\] does"),
        ({"released_code": ["spo_repaly"]}, "released_code must be .*did you mean 'spo_replay'"),
        (CHAIN | {"segmentation": "fixed_length", "segment_length": 9, "max_completion_length": 9}, "never cuts"),
        (CHAIN | {"segmentation": "fixed_count"}, "num_segments=None"),
        (CHAIN | {"segmentation": "steps", "step_splitter": "x"}, "step_splitter must be one of"),
        (CHAIN | {"replay_iterations": 8}, "set rollouts='tree'"),
        (CHAIN | {"importance": "sequence"}, "Set importance='sequence_token'"),
        (CHAIN | {"baseline": "optimal"}, "Set baseline='group'"),
        (CHAIN | VESPO, "Set loss_type='dapo'"),
        ({"process_reward_weight": 5.0}, "set rollouts"),
        ({"policy_loss": "policy_iteration"}, "Set beta to a number above 0, such as 0.1"),
        (ITERATION | {"loss_type": "cispo"}, "Set loss_type='dapo'"),
        (ITERATION | {"token_mask": "probability"}, "Set token_mask='none'"),
        (ITERATION | {"importance": "sequence_token"}, "Set importance='token'"),
        (ITERATION | {"whiten_advantages": "batch"}, "Set whiten_advantages='none'"),
        (ITERATION | {"loss_weight": "trace_past"}, "Set loss_weight='none'"),
        (ITERATION | {"top_entropy_quantile": 0.5}, "Set top_entropy_quantile=1.0"),
        (ITERATION | {"off_policy_mask_threshold": 0.5}, "Set off_policy_mask_threshold=None"),
        (ITERATION | {"credit": "builtins.print"}, "policy_loss='policy_iteration' with credit="),
        ({"use_vllm": True, "top_p": 0.0}, "Set top_p to above 0 and at most 1"),
    ],
    ids=str,
)
def test_ill_defined_combinations_name_the_field_and_the_fix(settings, message):
    with pytest.raises(ValueError, match=message):
        args_of(**settings)


def test_a_clip_range_that_never_clips_is_trls(tmp_path):
    """TRL's documentation sets epsilon=10 for DeepSeek-R1."""
    assert CreditConfig(output_dir=str(tmp_path), report_to="none", epsilon=10.0).epsilon == 10.0


def test_a_missing_deepspeed_is_named_with_its_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_settings, "find_spec", lambda name: None)
    for given in ("zero3.json", {"zero_optimization": {"stage": 3}}):
        with pytest.raises(ValueError, match=r"^deepspeed must be left out .*'trl-credit\[deepspeed\]'.*, got "):
            CreditConfig(output_dir=str(tmp_path), report_to="none", deepspeed=given)


def test_pass_rates_of_an_earlier_run_must_be_readable_when_the_configuration_is_built(tmp_path):
    path = tmp_path / "prompt_rates.jsonl"
    for wrong in (path, tmp_path):
        with pytest.raises(ValueError, match="^prompt_rates must be the prompt_rates.jsonl .* that exists.*got "):
            args_of(prompt_sampler="difficulty", prompt_rates=str(wrong))
    with names_alone():  # the settings of another machine's run
        assert args_of(prompt_sampler="difficulty", prompt_rates=str(path)).prompt_rates == str(path)
    path.write_text("")
    assert args_of(prompt_sampler="difficulty", prompt_rates=str(path)).prompt_rates == str(path)
    with pytest.raises(ValueError, match="^prompt_rates=.* does nothing, since prompt_sampler='data'"):
        args_of(prompt_rates=str(path))
