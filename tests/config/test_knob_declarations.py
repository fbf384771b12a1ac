"""Each knob is declared once; docstrings, help and tables agree with the declarations."""

import ast
import dataclasses
import inspect
import re

import pytest
from trl import GRPOConfig, ModelConfig

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.config import CHOICES, FUNCTION_KNOBS, KNOBS, defaults
from trl_credit.config.groups import GroupKnobs
from trl_credit.config.knobs import COUNT, knob, knobs_of, when
from trl_credit.config.rules import RULES
from trl_credit.config.segments import RELEASED_CODE, SegmentKnobs
from trl_credit.config.trl_settings import MODEL_ACTS, TRL_ACTS, TRL_VALUES
from trl_credit.config.turns import TurnKnobs


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
