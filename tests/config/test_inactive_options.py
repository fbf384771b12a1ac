"""Every knob that acts only beside others, on every preset: it changes the weights, or setting it is refused."""

import copy
import dataclasses
import hashlib

import pytest
import torch
from transformers import set_seed

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.config import KNOBS, active_part, defaults
from trl_credit.config.knobs import check_inactive_options
from trl_credit.config.segments import RELEASED_CODE
from trl_credit.demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_settings


def sums(completions: list[str], **kwargs) -> list[float]:
    """A reward in [0, 1] that nearly always differs within a group."""
    return [sum(map(ord, text)) % 8 / 7 for text in completions]


def accuracy(completions: list[str], **kwargs) -> list[float]:
    return [float(len(text) % 2) for text in completions]


CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 3, "temperature": 1.3}
PAIRS = {**CHAIN, "segmentation": "fixed_length", "segment_length": 2}
TREE = {"rollouts": "tree", "loss_type": "dapo"}
REPLAY = {**TREE, "per_device_train_batch_size": 4, "max_steps": 3}
PROCESS = {**PAIRS, "process_reward_weight": 1.0}
WINDOW = {"difficulty": "history", "difficulty_window": 1, "max_steps": 4}
RATE = {**WINDOW, "difficulty_window": 2, "difficulty_rate_min": 0.0, "difficulty_rate": 100.0}
MASKED = {"token_mask": "probability", "probability_threshold": 0.06, "beta": 0.5, "max_steps": 3}
S_TRACE, HA_DW = {"algo": "s_trace"}, {"algo": "ha_dw"}
# of each knob a value that is the default of no preset, and settings beside which it acts
KNOWN = {
    "trace_lambda": (0.3, S_TRACE),
    "gamma": (0.7, S_TRACE),
    "trace_style": ("both", {"algo": "grpo_lambda"}),
    "loss_weight_confidence": ("tanh", {"loss_weight": "trace_past"}),
    "clip_form": ("ratio", {"num_iterations": 3, "max_steps": 3, "epsilon": 1e-4}),
    "selective_rate": (0.6, S_TRACE),
    "leave_own_out": (False, S_TRACE),
    "probability_threshold": (0.06, {"token_mask": "probability"}),
    "difficulty_scale": (2.5, HA_DW),
    "difficulty_reward": (["sums"], {**HA_DW, "reward_funcs": [sums, accuracy]}),
    "difficulty_window": (2, {"difficulty": "hard", "max_steps": 4}),
    "difficulty_rate": (0.5, RATE),
    "difficulty_rate_min": (0.9, WINDOW),
    "difficulty_threshold": (0.1, {"difficulty": "fixed"}),
    "reward_range": ((-1.0, 3.0), HA_DW),
    "segmentation": ("fixed_length", CHAIN),
    "max_valued_steps": (1, PAIRS),
    "rollouts_per_state": (2, CHAIN),
    "initial_value": ("group", PAIRS),
    "certain_tolerance": (0.999999, PAIRS),
    "cutpoint_interval": (2, CHAIN),
    "num_segments": (2, CHAIN),
    "segment_length": (3, PAIRS),
    "step_splitter": ("math", {**CHAIN, "segmentation": "steps"}),
    "truncated_value": (-3.0, TREE),
    "rollout_batch_size": (2, PAIRS),
    "process_reward_weight": (2.0, PAIRS),
    "tree_branching": ([2, 3], TREE),
    "segment_advantage": ("std", TREE),
    "tree_rows": ("paths", TREE),
    "replay_iterations": (2, REPLAY),
    "replay_cap": (1, REPLAY),
    "released_code": (list(RELEASED_CODE), None),  # by name, below
    "tree_segment_length": (1, TREE),
    "process_reward_best_of": (2, PROCESS),
    "process_reward_form": ("value", PROCESS),
    "log_credit_groups": (2, None),  # changes what is written, not what is learned: test_rollout_log.py
}
OTHERS = {knob: value for knob, (value, _) in KNOWN.items()}
SET = {"segment_length": 1, "segmentation": f"{__name__}.every_token", "step_splitter": f"{__name__}.every_character"}
RELEASED_CODE_IN = {
    "spo_normalizer": MASKED,
    "spo_last_token": {**CHAIN, "segmentation": "fixed_length", "segment_length": 1},
    "spo_replay": {**REPLAY, "replay_cap": 2},
    "spo_policy_iteration": {"policy_loss": "policy_iteration", "beta": 0.1, "max_steps": 3, "loss_type": "dapo"},
}
CASES = [(knob, SET.get(knob, value), beside) for knob, (value, beside) in KNOWN.items() if beside is not None]
CASES += [("released_code", [name], settings) for name, settings in RELEASED_CODE_IN.items()]
_PLAIN: dict[str, str] = {}  # settings → hash of the weights


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


def test_every_knob_that_acts_beside_others_is_tried():
    differ = set(KNOWN) ^ {name for name, knob in KNOBS.items() if knob.acts}
    assert not differ, (
        f"KNOWN and the knobs with `acts` differ in {differ}: give (value, settings beside which it acts)"
    )
    differ = set(RELEASED_CODE_IN) ^ set(RELEASED_CODE)
    assert not differ, f"RELEASED_CODE_IN and RELEASED_CODE differ in {differ}: give there settings in which it acts"


@pytest.mark.slow
@pytest.mark.parametrize(("knob", "value", "beside"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_an_active_knob_changes_what_is_learned(make_trainer, knob, value, beside):
    settings = {"algo": "base", "max_steps": 1, "beta": 0.0, "reward_funcs": sums, **beside}
    if (plain := _PLAIN.get(str(settings))) is None:
        plain = _PLAIN[str(settings)] = learned(make_trainer(**settings))
    assert learned(make_trainer(**{**settings, knob: value})) != plain


def inactive_knobs(config: CreditConfig) -> dict:
    return {knob: value for knob, value in OTHERS.items() if not active_part({knob: 0}, vars(config))}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_inactive_knob_is_refused_and_does_nothing(make_trainer, algo, tmp_path, monkeypatch):
    config_class = ALGORITHMS[algo][0]
    given = {"output_dir": str(tmp_path), "report_to": "none"}
    config = config_class(**given)
    inactive = inactive_knobs(config)
    assert len(inactive) >= 10
    base = defaults(CreditConfig)
    assert {knob: defaults(config_class)[knob] for knob in inactive} == {knob: base[knob] for knob in inactive}
    for knob, value in inactive.items():
        changed = copy.copy(config)
        setattr(changed, knob, value)
        with pytest.raises(ValueError, match=f"^{knob}=.* does nothing, since .*: set .*, or leave {knob} out.$"):
            check_inactive_options(changed, RELEASED_CODE)
        setattr(changed, knob, base[knob])  # the default may be set explicitly
        check_inactive_options(changed, RELEASED_CODE)
    with pytest.raises(ValueError, match="does nothing"):
        config_class(**given, **inactive)
    given = {"reward_funcs": sums, "max_steps": 1}
    plain = learned(make_trainer(algo, **given))
    monkeypatch.setattr("trl_credit.config.credit_config.check_inactive_options", lambda *args: None)
    assert learned(make_trainer(algo, **given, **inactive)) == plain


def test_copies_are_built(tmp_path):
    for config_class, _ in ALGORITHMS.values():
        config = config_class(output_dir=str(tmp_path), report_to="none")
        given = {name: getattr(config, name) for name in KNOBS}
        assert config_class(output_dir=str(tmp_path), report_to="none", **given).importance == config.importance
        again = dataclasses.replace(config, generation_batch_size=None)
        assert (again.rollouts, again.importance) == (config.rollouts, config.importance)
        assert copy.deepcopy(config).to_dict() == config.to_dict()


def test_a_preset_without_its_method_keeps_its_other_defaults(tmp_path):
    tree = ALGORITHMS["spo_tree"][0](output_dir=str(tmp_path), report_to="none", rollouts="chain")
    assert tree.replay_iterations == 8  # its own default, which nobody set


def test_a_custom_credit_function_may_read_any_knob_of_w(tmp_path):
    def credit(config, tokens):
        raise NotImplementedError

    knobs = [name for name, knob in KNOBS.items() if any("credit" in condition for condition in knob.acts)]
    assert {"trace_lambda", "trace_style", "leave_own_out", "probability_threshold"} < set(knobs) and len(knobs) == 7
    CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, **{knob: OTHERS[knob] for knob in knobs})
    with pytest.raises(ValueError, match="tree_branching"):
        CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, tree_branching=[3])


def test_a_default_of_a_custom_class_is_not_refused(tmp_path):
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
    given = demo_settings(CreditConfig, rollouts="tree", tree_branching=[8])
    assert given.keys() & DEMO_SEGMENTS.keys() == {"tree_branching"}
    assert torch.tensor(config.max_completion_length) == 40
