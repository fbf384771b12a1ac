"""Every knob that acts only beside others, on every preset: it changes the weights, or setting it is refused. Fields of
TRL are named instead."""

import copy
import hashlib
import re
from typing import get_args, get_type_hints

import pytest
from passes_helpers import with_slow
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.config import KNOBS, active_part, defaults
from trl_credit.config.knobs import inactive_options, knobs_of
from trl_credit.config.segments import RELEASED_CODE
from trl_credit.config.trl_settings import TRL_ACTS
from trl_credit.hub.recipe import changed


def sums(completions: list[str], **kwargs) -> list[float]:
    """A reward in [0, 1] that nearly always differs within a group."""
    return [sum(map(ord, text)) % 8 / 7 for text in completions]


def accuracy(completions: list[str], **kwargs) -> list[float]:
    return [float(len(text) % 2) for text in completions]


def in_halves(completions: list[str], **kwargs) -> list[list[tuple[int, float]]]:
    """Two steps with a reward each, one for a single character."""
    values = zip(completions, sums(completions), strict=True)
    return [[(end, (k + 1) * x) for k, end in enumerate(sorted({len(c) // 2, len(c)} - {0}))] for c, x in values]


def half(prompts: list[str], completions: list[str], **kwargs) -> list[float]:
    """Without signal for prompts that begin with an even digit."""
    return [int(p[0]) % 2 * x for p, x in zip(prompts, sums(completions), strict=True)]


CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 3, "temperature": 1.3}
PAIRS = {**CHAIN, "segmentation": "fixed_length", "segment_length": 2}
TREE = {"rollouts": "tree", "loss_type": "dapo"}
REPLAY = {**TREE, "per_device_train_batch_size": 4, "max_steps": 3}
PROCESS = {**PAIRS, "process_reward_weight": 1.0}
WINDOW = {"difficulty": "history", "difficulty_window": 1, "max_steps": 4}
RATE = {**WINDOW, "difficulty_window": 2, "difficulty_rate_min": 0.0, "difficulty_rate": 100.0}
MASKED = {"token_mask": "probability", "probability_threshold": 0.06, "beta": 0.5, "max_steps": 3}
S_TRACE, HA_DW = {"algo": "s_trace"}, {"algo": "ha_dw"}
DULL = {"reward_funcs": half, "per_device_train_batch_size": 24, "max_steps": 5}
BY_DIFFICULTY = {**DULL, "prompt_sampler": "difficulty", "n_prompts": 24}
# of each knob a value that is the default of no preset, and settings beside which it acts
TOLD = {"algo": "opd", "teacher": "policy", "teacher_prompt": "{answer}{prompt}"}
KNOWN = {
    "trace_lambda": (0.3, S_TRACE),
    "gamma": (0.7, S_TRACE),
    "trace_style": ("both", {"algo": "grpo_lambda"}),
    "trace_unit": ("turn", None),  # needs turns: test_turn_training.py
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
    "step_gamma": (0.5, {"returns": "to_go", "reward_funcs": in_halves}),
    "step_baseline": ("response", {"returns": "to_go", "reward_funcs": in_halves}),
    "state_weight": (0.5, None),  # needs an environment: test_agent_credit.py
    "state_advantage": ("loo", None),  # likewise
    "released_code": (list(RELEASED_CODE), None),  # by name, below
    "tree_segment_length": (1, TREE),
    "process_reward_best_of": (2, PROCESS),
    "process_reward_form": ("value", PROCESS),
    "group_signal": ("reward", {**DULL, "groups": "replace", "reward_funcs": [sums, accuracy], "temperature": 0.01}),
    "max_copies": (1, {**DULL, "groups": "replace"}),
    "max_refills": (1, {**DULL, "groups": "refill"}),
    "dull_kl": ("drop", {**DULL, "beta": 0.5}),
    "teacher_prompt": ("{answer}{prompt}", {"algo": "opd"}),
    "teacher_sync_steps": (5, {**TOLD, "max_steps": 2}),
    "teacher_update_rate": (0.5, {**TOLD, "teacher_sync_steps": 2, "max_steps": 3}),
    "prompt_floor": (0.25, BY_DIFFICULTY),
    "retire_above": (0.1, BY_DIFFICULTY),
    "prompt_rates": (__file__, None),  # a file of an earlier run: test_prompt_sampler.py
    "log_credit_groups": (2, None),  # changes what is written, not what is learned: test_rollout_log.py
}
SET = {"segment_length": 1, "segmentation": f"{__name__}.every_token", "step_splitter": f"{__name__}.every_character"}
RELEASED_CODE_IN = {
    "spo_normalizer": MASKED,
    "spo_first_cutpoint": {**CHAIN, "token_mask": "probability", "probability_threshold": 0.06},
    "spo_last_token": {**CHAIN, "cutpoint_interval": 1, "probability_threshold": 1.0},
    "spo_replay": {**REPLAY, "replay_cap": 2},
    "spo_policy_iteration": {"policy_loss": "policy_iteration", "beta": 0.1, "max_steps": 3, "loss_type": "dapo"},
    "ha_dw_anchor": {"difficulty": "hard", "max_steps": 2},
}


def another(name: str) -> object:
    """A value of a field of TRL that is not its default."""
    default, kinds = defaults(GRPOConfig)[name], get_args(get_type_hints(GRPOConfig)[name])
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1 if isinstance(default, int) else default / 2 or 0.5
    of_kind = {str: "other", int: 3, float: 0.5, dict: {"block_size": 4}}
    return next((value for kind, value in of_kind.items() if kind in kinds), "other")


# of each field of TRL that acts only beside others a value that is no default
TRL_KNOWN = {name: another(name) for name in TRL_ACTS if name in defaults(GRPOConfig)} | {
    "vllm_importance_sampling_cap": 2.0,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_mode": "server",
    "log_completions_hub_repo": "me/completions",
    "epsilon": 1e-4,
    "epsilon_high": 1e-3,
    "delta": 1.001,
    "entropy_coef_min": 0.01,
    "entropy_coef_max": 0.02,
    "entropy_coef_delta": 0.5,
    "entropy_target": 9.0,
    "ref_model_mixup_alpha": 0.9,
    "ref_model_sync_steps": 1,
    "scale_rewards": "batch",
}
OTHERS = {knob: value for knob, (value, _) in KNOWN.items()} | TRL_KNOWN
TRAINED = ("s_trace", "grpo_lambda", "fipo", "kl_cov", "spo_tree", "vine_ppo")  # each has a path of its own
TRL_REFUSES = "log_completions_hub_repo"  # by itself, where it is inactive
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
    assert not differ, f"KNOWN and the knobs with `acts` differ in {differ}: give (value, settings in which it acts)"
    differ = set(RELEASED_CODE_IN) ^ set(RELEASED_CODE)
    assert not differ, f"RELEASED_CODE_IN and RELEASED_CODE differ in {differ}: give there settings in which it acts"


@pytest.mark.slow
@pytest.mark.parametrize(("knob", "value", "beside"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_an_active_knob_changes_what_is_learned(make_trainer, knob, value, beside):
    settings = {"algo": "base", "max_steps": 1, "beta": 0.0, "reward_funcs": sums, **beside}
    if (plain := _PLAIN.get(str(settings))) is None:
        plain = _PLAIN[str(settings)] = learned(make_trainer(**settings))
    assert learned(make_trainer(**{**settings, knob: value})) != plain


def warnings_of(caplog) -> list[str]:
    """The warnings about fields of TRL without effect, which `caplog` then forgets."""
    messages = [r.getMessage() for r in caplog.records if r.name == "trl_credit.config.checks"]
    caplog.clear()
    return messages


@pytest.mark.parametrize("algo", with_slow(ALGORITHMS, *ALGORITHMS.keys() - {"s_trace", "spo_tree", "vine_ppo"}))
def test_inactive_knobs_are_refused_fields_of_trl_named_and_both_do_nothing(make_trainer, algo, monkeypatch, caplog):
    config_class = ALGORITHMS[algo][0]
    common = {"output_dir": "unused", "report_to": "none"}
    config = config_class(**common)
    idle = {knob: value for knob, value in OTHERS.items() if not active_part({knob: 0}, vars(config))}
    inactive = {name: x for name, x in idle.items() if x != getattr(config, name) and name != TRL_REFUSES}
    assert len(inactive.keys() & KNOBS) >= 10 and len(inactive.keys() & TRL_ACTS) >= 30
    base, acts = defaults(CreditConfig), {name: knob.acts for name, knob in knobs_of(config_class).items()}
    ours, theirs = ({n: x for n, x in inactive.items() if (n in KNOBS) is own} for own in (True, False))
    assert {knob: defaults(config_class)[knob] for knob in ours} == {knob: base[knob] for knob in ours}
    for knob, value in inactive.items():
        other = copy.copy(config)
        setattr(other, knob, value)
        messages = inactive_options(other, acts | TRL_ACTS)
        assert messages.keys() == {knob}
        assert re.match(f"{knob}=.* does nothing, since .*: set .*, or leave {knob} out.$", messages[knob])
        setattr(other, knob, base[knob])  # the default may be set explicitly
        assert not inactive_options(other, acts | TRL_ACTS)
    with pytest.raises(ValueError, match="does nothing") as caught:
        config_class(**common, **inactive)
    act = {"group_signal", "reward_range"}  # beside `dull_kl` and `process_reward_weight`, which do nothing either
    # which `released_code` asks for
    act |= {"rollouts", "segmentation", "policy_loss", "token_mask", "replay_cap", "difficulty", "scale_rewards"}
    assert {line.partition("=")[0] for line in str(caught.value).splitlines()} | act == ours.keys() | act
    assert not warnings_of(caplog)
    built = config_class(**common, **theirs)
    (warned,) = warnings_of(caplog)
    assert {line.partition("=")[0] for line in warned.splitlines()[1:]} == theirs.keys()
    copied = config_class(**common, **changed(built))
    assert not warnings_of(caplog) and copied.to_dict() == config.to_dict()  # they stay off the recipe
    if algo not in TRAINED:
        return
    settings = {"reward_funcs": sums, "max_steps": 1}
    plain = learned(make_trainer(algo, **settings))
    monkeypatch.setattr("trl_credit.config.checks.inactive_options", lambda *args, **kwargs: {})
    inactive.pop("released_code", None)  # which a rule refuses too
    assert learned(make_trainer(algo, **settings, **inactive)) == plain


def test_a_custom_credit_function_may_read_any_knob_of_w(tmp_path):
    def credit(config, tokens):
        raise NotImplementedError

    knobs = [name for name, knob in KNOBS.items() if any("credit" in condition for condition in knob.acts)]
    assert {"trace_lambda", "trace_style", "leave_own_out", "probability_threshold"} < set(knobs) and len(knobs) == 8
    CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, **{knob: OTHERS[knob] for knob in knobs})
    with pytest.raises(ValueError, match="tree_branching"):
        CreditConfig(output_dir=str(tmp_path), report_to="none", credit=credit, tree_branching=[3])


@pytest.mark.parametrize(
    "settings",
    [
        {"vllm_server_port": 1, "use_vllm": True},
        {"epsilon": 0.1, "loss_type": "cispo", "epsilon_high": 5.0},
        {"scale_rewards": "batch", "baseline": "optimal"},
    ],
    ids=str,
)
def test_a_field_of_trl_that_does_nothing_is_named(tmp_path, settings, caplog):
    common = {"output_dir": str(tmp_path), "report_to": "none"}
    config = CreditConfig(**common, **settings)
    (warned,) = warnings_of(caplog)
    assert re.search(f"^{next(iter(settings))}=.* does nothing, ", warned, re.MULTILINE)
    assert next(iter(settings)) not in changed(config)
    CreditConfig(**common, loss_type="cispo", epsilon=0.1)  # its upper bound, as there is no epsilon_high
    assert not warnings_of(caplog)


# What stock TRL accepts runs, and trains the same weights; what it ignores is named once


def test_a_value_that_trl_does_not_read_is_not_checked(tmp_path, caplog):
    ignored = {"sapo_temperature_neg": 0.0, "vllm_mode": "none", "ref_model_sync_steps": 0, "num_train_epochs": 0}
    CreditConfig(str(tmp_path), report_to="none", max_steps=1, **ignored)
    assert [line.partition("=")[0] for line in warnings_of(caplog)[0].splitlines()[1:]] == [
        *("num_train_epochs", "vllm_mode", "ref_model_sync_steps", "sapo_temperature_neg")
    ]
    with pytest.raises(ValueError, match="^num_train_epochs must be positive.*\nsapo_temperature_neg must be"):
        CreditConfig(str(tmp_path), report_to="none", loss_type="sapo", **ignored)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": None, "top_p": None, "repetition_penalty": None, "max_grad_norm": -1.0}, {"max_grad_norm": 0.0}),
        ({"beta": 0.0, "sync_ref_model": True, "vllm_mode": "server", "save_total_limit": 0}, {}),
    ],
    ids=str,
)
def test_values_that_trl_takes_train_as_in_trl(make_trainer, tmp_path, settings, same):
    as_trl = {"beta": 0.0, "length_sort": "off", "shared_prefix": "off", "learning_rate": 1e-2}
    ours = learned(make_trainer("base", reward_funcs=sums, **as_trl | settings))
    with_trl = {name: value for name, value in (as_trl | same).items() if name in defaults(GRPOConfig)}
    assert ours == learned(make_trainer((GRPOConfig, GRPOTrainer), reward_funcs=sums, **with_trl))
