"""Defaults of the presets, the combinations that are refused with the fix in the message, and ways to construct."""

import ast
import copy
import dataclasses
import inspect
import pickle
import re
from dataclasses import asdict, replace

import pytest
import trl
from conftest import PAIRS
from custom_functions import args_of
from trl import GRPOConfig, ModelConfig

from trl_credit import ALGORITHMS, CreditConfig, STraceConfig
from trl_credit.config import CHOICES, FUNCTION_KNOBS, KNOBS, defaults
from trl_credit.config.groups import GroupKnobs
from trl_credit.config.knobs import COUNT, knob, knobs_of, when
from trl_credit.config.rules import RULES
from trl_credit.config.segments import RELEASED_CODE, SegmentKnobs
from trl_credit.config.trl_settings import MODEL_ACTS, TRL_ACTS, TRL_VALUES
from trl_credit.config.turns import TurnKnobs
from trl_credit.support.functions import names_alone


RLSD = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "teacher": "policy", "teacher_sync_steps": 20}
SDPO = {"teacher": "policy", "teacher_sync_steps": 1, "teacher_update_rate": 0.05, "teacher_prompt": "success"}


def test_published_settings():
    fipo = {"epsilon_high": 0.28, "future_half_life": 32.0, "future_clip": [1.0, 1.2], "future_ratio_max": 10.0}
    fipo |= {"future_safety_ratio": 10.0, "delta": 10.0, "mask_truncated_completions": False, "steps_per_generation": 8}
    chain = {"rollouts": "chain", "loss_type": "grpo", "cutpoint_interval": 5, "rollouts_per_state": 9, "beta": 1e-4}
    chain |= {"token_mask": "probability", "probability_threshold": 0.9, "num_iterations": 2}
    tree = {"rollouts": "tree", "loss_type": "dapo", "prompt_average": True, "tree_branching": [6, 6, 6], "beta": 1e-4}
    tree |= {"tree_segment_length": 30, "token_mask": "probability", "replay_iterations": 8, "replay_cap": 32}
    clip_cov = {"epsilon": 1.0, "epsilon_high": 1.0, "cov_share": 2e-4, "cov_range": [1.0, 5.0]}
    expected = {
        "grpo": {"loss_type": "grpo", "importance": "token", "epsilon": 0.2},
        "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "p_trace": {"importance": "eligible", "selector": "none", "trace_lambda": 0.9, "gamma": 1.0, "beta": 0.001},
        "s_trace": {"importance": "eligible", "selector": "entropy", "selective_rate": 0.2, "leave_own_out": True},
        "grpo_lambda": {"importance": "lambda_trace", "trace_lambda": 0.99, "advantage_floor": -0.1, "beta": 0.04},
        "fipo": fipo,
        "clip_cov": {**clip_cov, "steps_per_generation": 8},
        "kl_cov": {"loss_type": "dapo", "cov_share": 2e-3, "cov_penalty": 1.0, "steps_per_generation": 8},
        "gspo": {"importance": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
        "gspo_token": {"importance": "sequence_token", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
        "ha_dw": {"difficulty": "history", "difficulty_scale": 1.3, "difficulty_window": 10},
        "opo": {"baseline": "optimal", "scale_rewards": "none", "num_iterations": 1, "beta": 0.0},
        "spo_chain": chain,
        "spo_tree": tree,
        "vine_ppo": {"rollouts": "chain", "loss_type": "grpo", "segmentation": "steps"},
        "opd": {"distillation_coef": 1.0, "distillation_outcome": True, "distillation_position": 0.0},
        "rlsd": {**RLSD, "evidence_share": 0.5, "evidence_clip": 0.2, "evidence_steps": 60},
        "sdpo": {**SDPO, "distillation_weight": 1.0, "distillation_ratio_max": 2.0},
    }
    differ = set(expected) ^ set(ALGORITHMS)
    assert not differ, f"`expected` and ALGORITHMS differ in {differ}: give here what the paper of each sets"
    for name, fields in expected.items():
        config = args_of(ALGORITHMS[name][0])
        assert {key: getattr(config, key) for key in fields} == fields, name
        if config.has_trace:
            assert config.use_bias_correction_kl is False
    assert args_of().reward_range == [0.0, 1.0]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_any_knob_on_any_preset(name):
    mixed = {"distillation_weight": 0.5} if name == "sdpo" else {}  # its own loss alone reads no advantage
    config = args_of(ALGORITHMS[name][0], difficulty="history", advantage_floor=-0.5, loss_type="dapo", **mixed)
    assert (config.difficulty, config.advantage_floor) == ("history", -0.5)
    if config.rollouts == "none":
        assert args_of(ALGORITHMS[name][0], baseline="optimal", loss_type="dapo", **mixed).baseline == "optimal"
    if config.importance != "sequence" and config.baseline == "group":  # which segments are refused with
        args_of(ALGORITHMS[name][0], rollouts="chain", replay_iterations=1)
        if not config.custom_functions():  # which decides itself
            args_of(ALGORITHMS[name][0], rollouts="tree", mask_truncated_completions=False)


VESPO, RATIO, CHAIN, TREE = {"loss_type": "vespo"}, {"clip_form": "ratio"}, {"rollouts": "chain"}, {"rollouts": "tree"}
PATHS, MANY = TREE | {"tree_rows": "paths"}, {"multi_objective_aggregation": "normalize_then_sum"}
ITERATION = {"policy_loss": "policy_iteration", "beta": 0.1}
WEIGHT, BOUND = {"loss_weight": "trace_past"}, {"td_upper_bound": True}
SEQUENCE, ASSIGN = {"importance_sampling_level": "sequence"}, "trl_credit.loss.assignment.assign_credit"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"loss_weight_confidence": "tanh"}, "loss_weight"),
        (WEIGHT | {"loss_weight_confidence": "tanh_grad", "loss_type": "cispo"}, "loss_type"),
        (BOUND | VESPO, "loss_type"),
        (RATIO | {"beta": 0.1}, "use_bias_correction_kl"),
        (SEQUENCE | {"importance": "eligible"}, "importance_sampling_level"),
        ({"importance": "sequence", "top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"selector": "entropy"}, "importance"),
        ({"importance": "eligible", "loss_type": "cispo"}, "loss_type"),
        (VESPO | {"importance": "sequence_token"}, "importance"),
        (MANY | TREE, "multi_objective_aggregation"),
        (TREE | {"tree_segment_length": 128, "max_completion_length": 256}, "tree_segment_length"),
        (PATHS | {"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        (TREE | {"tree_branching": [3, 2], "process_reward_weight": 1.0}, "process_reward_best_of"),
        ({"released_code": ["spo_replay"]}, "rollouts"),
        (CHAIN | {"released_code": ["spo_last_token", "spo_normalizer"]}, "token_mask"),
        (CHAIN | {"segmentation": "fixed_length", "segment_length": 9, "max_completion_length": 9}, "segment_length"),
        (CHAIN | {"segmentation": "steps", "step_splitter": "x"}, "step_splitter"),
        (CHAIN | {"replay_iterations": 8}, "rollouts"),
        (CHAIN | {"baseline": "optimal"}, "baseline"),
        ({"policy_loss": "policy_iteration"}, "beta"),
        (ITERATION | {"whiten_advantages": "batch"}, "whiten_advantages"),
        (ITERATION | {"credit": "builtins.print"}, "policy_loss"),
    ],
    ids=str,
)
def test_ill_defined_combinations_name_the_field_to_change(settings, field):
    with pytest.raises(ValueError, match=rf"(?i)(\bset |\blower |^){field}\b"):
        args_of(**settings)


OF_COVARIANCE = [
    ({"credit": None}, "Set credit='trl_credit.presets"),
    ({"loss_type": "vespo"}, "Set loss_type='grpo' or"),
    (TREE | {"mask_truncated_completions": False}, "rollouts='tree' with .*Set rollouts"),
    ({"whiten_advantages": "microbatch"}, "Set whiten_advantages='none' or 'batch'"),
    ({"gradient_accumulation_steps": 4, "steps_per_generation": 4}, "Set steps_per_generation=8 or"),
    ({"cov_share": 1.5}, r"cov_share must be in \[0, 1\]"),
]
OF_PRESETS = [
    ("base", {"importance": "turn", "token_mask": "probability"}, "token_mask=.*importance='turn_token' does not"),
    ("base", SEQUENCE | {"importance": "turn"}, "Set importance_sampling_level='token'"),
    ("base", {"trace_unit": "turn", "importance": "eligible", **WEIGHT}, "Set loss_weight='none'"),
    ("base", {"turn_average": True}, "turn_average=True.*Set loss_type='g"),
    ("base", {"turn_average": True, "loss_type": "grpo", **ITERATION}, "Set policy_loss='clip'"),
    *((algo, *row) for algo in ("clip_cov", "kl_cov") for row in OF_COVARIANCE),
    ("kl_cov", {"epsilon": 0.1}, "epsilon=0.1 with KLCovConfig: its loss is not clipped. Set epsilon=0.2"),
    ("kl_cov", {"importance": "eligible"}, "Set importance='token'"),
    ("kl_cov", {"beta": 0.1, "use_bias_correction_kl": True}, "Set use_bias_correction_kl=False"),
    ("kl_cov", {"cov_penalty": -1.0}, "cov_penalty must be at least 0"),
    ("fipo", {"credit": ASSIGN}, "Set credit='trl_credit.presets.fipo.FIPO'"),
    ("fipo", {"loss_type": "cispo"}, "loss_type='cispo' with FIPOConfig: .*Set loss_type='grpo' or"),
    ("fipo", {"importance": "sequence"}, "importance='sequence' with .*: .*Set importance='sequence_token' or"),
    ("fipo", TREE, "rollouts='tree' with FIPOConfig"),
    ("fipo", {"future_drop_clipped": 2, "delta": None}, "future_drop_clipped=2 does nothing, since delta=None"),
    ("fipo", {"future_half_life": 0.0}, "future_half_life must be positive and finite, got 0.0"),
    ("fipo", {"future_clip": [1.2, 1.0]}, "future_clip must be two positive numbers, the smaller first"),
    ("opd", {"teacher": "policy"}, "weights and prompt are those of the policy"),
    ("opd", {"teacher": None}, "needs a teacher"),
    *(
        ("opd", {"teacher_prompt": x}, "teacher_prompt must be")
        for x in ("no columns", "{prompt", "The answer is known.")
    ),
    ("opd", {"teacher_sync_steps": 5}, "teacher_sync_steps=5 does nothing"),
    ("opd", {"teacher": "policy", "teacher_sync_steps": 1}, "it is the policy itself"),
    ("opd", {"distillation_outcome": False, "difficulty": "history"}, "reads no advantage"),
    ("sdpo", {"whiten_advantages": "batch"}, "reads no advantage"),
    ("rlsd", TREE, "have no context of their own"),
    ("rlsd", {"teacher_update_rate": 0.0}, "teacher_update_rate must be above 0"),
    ("sdpo", {"distillation_weight": 1.5}, "distillation_weight must be in"),
    ("opd", {"importance": "sequence"}, "would average over the response"),
]


@pytest.mark.parametrize(("algo", "settings", "message"), OF_PRESETS, ids=str)
def test_what_does_not_go_together_is_refused_with_the_fix(algo, settings, message):
    with pytest.raises(ValueError, match=message):
        args_of(PAIRS[algo][0], **settings)


def test_pass_rates_of_another_machines_run_need_not_exist(tmp_path):
    rates = {"prompt_sampler": "difficulty", "prompt_rates": str(tmp_path / "prompt_rates.jsonl")}
    with pytest.raises(ValueError, match="^prompt_rates must be the prompt_rates.jsonl .* that exists.*got "):
        args_of(**rates)
    with names_alone():  # which only reads the settings
        assert args_of(**rates).prompt_rates == rates["prompt_rates"]


# Unknown keywords, and the other ways to make a configuration, which stay as they are


def test_an_unknown_keyword_is_answered_with_the_field_that_was_meant():
    with pytest.raises(TypeError) as raised:
        STraceConfig("unused", trace_lamda=0.5)
    assert str(raised.value) == "STraceConfig has no field 'trace_lamda': did you mean 'trace_lambda'?"
    with pytest.raises(TypeError, match=f"has no field 'xyz', nor has GRPOConfig of trl {trl.__version__}$"):
        CreditConfig("unused", xyz=1)
    with pytest.raises(TypeError, match="has no field '_n_gpu'"):  # a field that the constructor does not take
        CreditConfig("unused", _n_gpu=1)


class Written(STraceConfig):
    """A subclass with a constructor of its own."""

    def __init__(self, folder: str, *, rate: float = 0.1) -> None:
        super().__init__(output_dir=folder, report_to="none", selective_rate=rate)


def test_all_other_ways_to_make_a_configuration_are_as_before():
    assert Written(folder="unused", rate=0.3).selective_rate == 0.3
    with pytest.raises(TypeError, match="Written has no field 'rat'"):
        Written(folder="unused", rat=0.3)
    config = args_of(STraceConfig, trace_lambda=0.5)
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert type(other) is STraceConfig and asdict(other) == asdict(config)
    assert replace(config, generation_batch_size=None, trace_lambda=0.7).trace_lambda == 0.7


# Each knob is declared once; docstrings, help and tables agree with the declarations


OWN_FIELDS = {f.name for f in dataclasses.fields(CreditConfig)} - {f.name for f in dataclasses.fields(GRPOConfig)}
ENTRY = re.compile(r"^    (\w+) \((.*?)\)(?::.*)?\n((?:        .*\n|\n)*)", re.MULTILINE)
PARTS = [SegmentKnobs, GroupKnobs, TurnKnobs, CreditConfig]
CLASSES = [*PARTS, *(config_class for config_class, _ in ALGORITHMS.values())]


def test_every_own_field_is_declared_with_help():
    assert set(KNOBS) == OWN_FIELDS
    for f in dataclasses.fields(CreditConfig):
        if f.name in OWN_FIELDS:
            assert len(f.metadata["help"].split()) > 2 and f.metadata.keys() == {"help"}, f.name


@pytest.mark.parametrize("config_class", CLASSES, ids=lambda of: of.__name__)
def test_the_docstring_has_every_field_with_its_default_and_choices(config_class):
    text = inspect.getdoc(config_class).partition("Parameters:")[2].partition("Raises:")[0] + "\n"
    entries = {name: (about, rest) for name, about, rest in ENTRY.findall(text)}
    # the settings of a preset's algorithm are in a class derived from the one that is written there
    own = [base for base in config_class.__mro__ if base.__module__ == config_class.__module__]
    assert set(entries) == {name for base in own for name in inspect.get_annotations(base)}
    for name, (about, rest) in entries.items():
        default = defaults(config_class)[name]
        shown = re.search(r"defaults to `(.*)`", about)
        shown = None if shown is None else ast.literal_eval(shown[1])
        assert (list(shown) if isinstance(shown, tuple) else shown) == default, name
        if config_class in PARTS:
            missing = [choice for choice in CHOICES.get(name, ()) if f'"{choice}"' not in about + rest]
            assert not missing, (name, missing)


def test_a_preset_keeps_the_declarations_and_may_add_its_own():
    @dataclasses.dataclass
    class OwnConfig(ALGORITHMS["s_trace"][0]):
        trace_lambda: float = 0.5
        my_rate: int = knob(3, COUNT, acts=when(importance="token"))

    declared = knobs_of(OwnConfig)
    assert declared["trace_lambda"] is KNOBS["trace_lambda"] and set(declared) == OWN_FIELDS | {"my_rate"}
    common = {"output_dir": "unused", "report_to": "none"}
    assert OwnConfig(**common).trace_lambda == 0.5
    with pytest.raises(ValueError, match="my_rate must be a whole number of at least 1, got 0"):
        OwnConfig(**common, my_rate=0)
    with pytest.raises(ValueError, match="my_rate=4 does nothing, since importance='eligible': set importance='token'"):
        OwnConfig(**common, my_rate=4)
    with pytest.raises(ValueError, match="my_rate must be"):
        OwnConfig(**common, my_rate=None)


def test_the_tables_come_from_the_declarations():
    assert FUNCTION_KNOBS["credit"] == () and FUNCTION_KNOBS["baseline"] == ("group", "optimal")
    functions = {"credit", "selector", "token_mask", "baseline", "segmentation", "step_splitter", "teacher_prompt"}
    assert set(FUNCTION_KNOBS) == functions
    assert CHOICES["released_code"] == tuple(RELEASED_CODE)
    known = {f.name for f in dataclasses.fields(CreditConfig)}
    for rule in RULES:
        assert rule.condition.keys() | rule.needed.keys() <= known
        for name, values in (rule.condition | rule.needed).items():
            allowed = KNOBS[name].values if name in KNOBS else TRL_VALUES.get(name)
            assert allowed is None or all(x is None or allowed.holds(x) for x in values.names), name
    of_model = {f.name for f in dataclasses.fields(ModelConfig)}
    ours = {name: knob.acts for name, knob in KNOBS.items()}
    for fields, acts in ((known, TRL_ACTS | ours), (of_model, MODEL_ACTS)):
        for name, conditions in acts.items():
            assert name in fields
            for condition in conditions:
                assert condition.keys() <= fields and name not in condition
