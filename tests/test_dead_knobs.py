"""Every knob of credit, on every preset: either it changes what a run learns, or it is refused when it is set."""

import copy
import dataclasses
import hashlib

import pytest
import torch
from transformers import set_seed
from trl import GRPOConfig

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.dead_knobs import ALWAYS, LIVES, check_dead_knobs, defaults, live_part
from trl_credit.demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_settings


def sums(completions: list[str], **kwargs) -> list[float]:
    """A reward in [0, 1] that nearly always differs within a group."""
    return [sum(map(ord, text)) % 8 / 7 for text in completions]


def accuracy(completions: list[str], **kwargs) -> list[float]:
    return [float(len(text) % 2) for text in completions]


OWN_FIELDS = {f.name for f in dataclasses.fields(CreditConfig)} - {f.name for f in dataclasses.fields(GRPOConfig)}
# a value of each knob that is the default of no preset
OTHERS = {
    "trace_lambda": 0.3,
    "gamma": 0.7,
    "trace_style": "both",
    "loss_weight_confidence": True,
    "clip_form": "ratio",
    "selective_rate": 0.6,
    "leave_own_out": False,
    "probability_threshold": 0.06,
    "mask_normalizer": "code",
    "difficulty_scale": 2.5,
    "difficulty_reward": ["sums"],
    "difficulty_window": 2,
    "difficulty_rate": 0.5,
    "difficulty_rate_min": 0.9,
    "difficulty_threshold": 0.1,
    "reward_range": (-1.0, 3.0),
    "segmentation": "fixed_length",
    "include_last": True,
    "max_valued_steps": 1,
    "rollouts_per_state": 2,
    "initial_value": "group",
    "certain_tolerance": 0.999999,
    "cutpoint_interval": 2,
    "num_segments": 2,
    "segment_length": 3,
    "step_splitter": "math",
    "truncated_value": -3.0,
    "rollout_batch_size": 2,
    "process_reward_weight": 2.0,
    "tree_branching": [2, 3],
    "segment_advantage": "std",
    "tree_rows": "paths",
    "replay_iterations": 2,
    "replay_cap": 1,
    "replay_legacy": True,
    "tree_segment_length": 1,
    "process_reward_best_of": 2,
    "process_reward_form": "value",
    "log_credit_groups": 2,
}
WRITES = {"log_credit_groups"}  # what is written, and nothing of what is learned: test_rollout_log.py
CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 3, "temperature": 1.3}
PAIRS = {**CHAIN, "segmentation": "fixed_length", "segment_length": 2}
TREE = {"rollouts": "tree", "loss_type": "dapo"}
REPLAY = {**TREE, "per_device_train_batch_size": 4, "max_steps": 3}
PROCESS = {**PAIRS, "process_reward_weight": 1.0}
WINDOW = {"difficulty": "history", "difficulty_window": 1, "max_steps": 4}
# settings in which a knob acts, and what it is set to where that is not as above
ACTS_IN = {
    **dict.fromkeys(("trace_lambda", "gamma", "selective_rate", "leave_own_out"), {"algo": "s_trace"}),
    "trace_style": {"algo": "grpo_lambda"},
    "loss_weight_confidence": {"loss_weight": "trace_past"},
    "clip_form": {"num_iterations": 3, "max_steps": 3, "epsilon": 1e-4},
    "probability_threshold": {"token_mask": "probability"},
    "mask_normalizer": {"token_mask": "probability", "probability_threshold": 0.06, "beta": 0.5, "max_steps": 3},
    "difficulty_scale": {"algo": "ha_dw"},
    "difficulty_reward": {"algo": "ha_dw", "reward_funcs": [sums, accuracy]},
    "difficulty_window": {"difficulty": "hard", "max_steps": 4},
    "difficulty_rate": {**WINDOW, "difficulty_window": 2, "difficulty_rate_min": 0.0, "difficulty_rate": 100.0},
    "difficulty_rate_min": WINDOW,
    "difficulty_threshold": {"difficulty": "fixed"},
    "reward_range": {"algo": "ha_dw"},
    **dict.fromkeys(("segmentation", "rollouts_per_state", "cutpoint_interval", "num_segments"), CHAIN),
    "include_last": {**CHAIN, "segmentation": "fixed_length", "segment_length": 1},
    **dict.fromkeys(
        ("max_valued_steps", "initial_value", "certain_tolerance", "rollout_batch_size", "process_reward_weight"),
        PAIRS,
    ),
    "segment_length": PAIRS,
    "step_splitter": {**CHAIN, "segmentation": "steps"},
    "truncated_value": TREE,
    **dict.fromkeys(("tree_branching", "segment_advantage", "tree_rows", "tree_segment_length"), TREE),
    **dict.fromkeys(("replay_iterations", "replay_cap"), REPLAY),
    "replay_legacy": {**REPLAY, "replay_cap": 2},
    "process_reward_best_of": PROCESS,
    "process_reward_form": PROCESS,
}
SET = {"segment_length": 1, "segmentation": f"{__name__}.every_token", "step_splitter": f"{__name__}.every_character"}


_PLAIN: dict[str, str] = {}  # by settings


def every_character(text: str) -> list[int]:
    return list(range(len(text) + 1))


def every_token(old_logp_t, *, completion_ids, decode, mask_t):
    return mask_t.bool()


def learned(trainer) -> str:
    """A hash of the parameters after training."""
    set_seed(0)
    trainer.train()
    digest = hashlib.sha256()
    for p in trainer.model.parameters():
        digest.update(p.detach().numpy().tobytes())
    return digest.hexdigest()


def test_the_table_has_every_knob_once():
    table = [*ALWAYS, *(knob for life in LIVES for knob in life.knobs)]
    assert sorted(table) == sorted(OWN_FIELDS)
    assert set(OTHERS) == set(ACTS_IN) | WRITES == OWN_FIELDS - set(ALWAYS)


@pytest.mark.parametrize("knob", ACTS_IN)
def test_a_live_knob_changes_what_is_learned(make_trainer, knob):
    settings = {"algo": "base", "max_steps": 1, "beta": 0.0, "reward_funcs": sums, **ACTS_IN[knob]}
    if (plain := _PLAIN.get(str(settings))) is None:
        plain = _PLAIN[str(settings)] = learned(make_trainer(**settings))
    assert learned(make_trainer(**{**settings, knob: SET.get(knob, OTHERS[knob])})) != plain


def dead_knobs(config: CreditConfig) -> dict:
    return {knob: value for knob, value in OTHERS.items() if not live_part({knob: 0}, vars(config))}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_dead_knob_is_refused_and_does_nothing(make_trainer, algo, tmp_path, monkeypatch):
    config_class = ALGORITHMS[algo][0]
    given = {"output_dir": str(tmp_path), "report_to": "none"}
    config = config_class(**given)
    dead = dead_knobs(config)
    assert len(dead) >= 10
    for knob, value in dead.items():
        changed = copy.copy(config)
        setattr(changed, knob, value)
        with pytest.raises(ValueError, match=f"^{knob}=.* does nothing, since .*: set .*, or leave {knob} out.$"):
            check_dead_knobs(changed)
        setattr(changed, knob, defaults(CreditConfig)[knob])  # what is off anyway may be said
        check_dead_knobs(changed)
    with pytest.raises(ValueError, match="does nothing"):
        config_class(**given, **dead)
    given = {"reward_funcs": sums, "max_steps": 1}
    plain = learned(make_trainer(algo, **given))
    monkeypatch.setattr("trl_credit.config.check_dead_knobs", lambda config: None)
    assert learned(make_trainer(algo, **given, **dead)) == plain


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_no_preset_carries_a_dead_knob_of_its_own(algo, tmp_path):
    config = ALGORITHMS[algo][0](output_dir=str(tmp_path), report_to="none")
    base = defaults(CreditConfig)
    for knob in dead_knobs(config):
        assert defaults(type(config))[knob] == base[knob], knob


def test_copies_are_built(tmp_path):
    for config_class, _ in ALGORITHMS.values():
        config = config_class(output_dir=str(tmp_path), report_to="none")
        given = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init and f.name in OWN_FIELDS}
        assert config_class(output_dir=str(tmp_path), report_to="none", **given).importance == config.importance
        assert dataclasses.replace(config, generation_batch_size=None).rollouts == config.rollouts
        assert copy.deepcopy(config).to_dict() == config.to_dict()


def test_a_preset_without_its_method_keeps_its_other_defaults(tmp_path):
    tree = ALGORITHMS["spo_tree"][0](output_dir=str(tmp_path), report_to="none", rollouts="chain")
    assert tree.replay_iterations == 8  # its own default, which nobody set


def test_a_function_of_ones_own_may_read_any_knob_of_w(tmp_path):
    def credit(config, tokens):
        raise NotImplementedError

    knobs = ("trace_lambda", "gamma", "trace_style", "selective_rate", "leave_own_out", "probability_threshold")
    knobs += ("loss_weight_confidence",)
    CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, **{knob: OTHERS[knob] for knob in knobs})
    with pytest.raises(ValueError, match="tree_branching"):
        CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, tree_branching=[3])


def test_a_default_of_a_class_of_ones_own_is_not_refused(tmp_path):
    @dataclasses.dataclass
    class OwnConfig(CreditConfig):
        trace_lambda: float = 0.5

    assert OwnConfig(output_dir=str(tmp_path), report_to="none").trace_lambda == 0.5
    with pytest.raises(ValueError, match="trace_lambda=0.4 does nothing"):
        OwnConfig(output_dir=str(tmp_path), report_to="none", trace_lambda=0.4)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_settings_of_the_demo_fit_every_algorithm(algo, tmp_path):
    config_class = ALGORITHMS[algo][0]
    settings = demo_settings(config_class, max_steps=7)
    assert settings["max_steps"] == 7 and DEMO_SETTINGS.keys() <= settings.keys()
    config = config_class(output_dir=str(tmp_path), report_to="none", **settings)
    of_segments = {
        "spo_chain": {"cutpoint_interval"},
        "spo_tree": {"tree_branching", "tree_segment_length"},
        "vine_ppo": {"step_splitter"},
    }
    assert settings.keys() & DEMO_SEGMENTS.keys() == of_segments.get(algo, set())
    assert demo_settings(CreditConfig, rollouts="tree", tree_branching=[8]).keys() & DEMO_SEGMENTS.keys() == {
        "tree_branching"
    }
    assert torch.tensor(config.max_completion_length) == 40
