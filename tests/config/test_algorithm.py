"""The fields of an algorithm that is a dataclass are settings: of configurations, files, commands and checkpoints."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import InitVar, dataclass, field, fields, replace
from typing import Any, Literal

import pytest
from custom_functions import FILE, args_of, custom
from scripts import ROOT
from weight_helpers import same_weights

from trl_credit import assign_credit
from trl_credit.config.algorithm import algorithm_of, settings_of
from trl_credit.observe.log_entries import settings_of as logged_settings
from trl_credit.presets import PRESETS
from trl_credit.support.functions import resolve_function


WORDS = custom("GroupWords")
GroupWords = resolve_function(WORDS, what="credit", known=())


class Base:
    def credit(self, config, tokens):
        return assign_credit(config, tokens)


@dataclass
class Plain(Base):
    share: float = 0.5
    count: int = 3
    on: bool = True
    mode: Literal["a", "b"] = "a"
    most: float = float("inf")
    pair: tuple[float, float] = (0.8, 1.2)
    table: dict = field(default_factory=dict)
    note: Any = field(default=None, metadata={"help": "A note.", "unit": "none"})


# Configurations


@pytest.mark.parametrize("credit", [GroupWords(strength=0.7), GroupWords, WORDS])
def test_the_fields_are_fields_of_the_configuration(credit):
    own = {} if isinstance(credit, GroupWords) else {"strength": 0.7}
    args = args_of(PRESETS["grpo"].config, credit=credit, **own)
    assert (args.credit, args.strength, args.cap) == (WORDS, 0.7, None) and isinstance(args, PRESETS["grpo"].config)
    assert not {"_batches", "credit_state"} & {f.name for f in fields(args)}
    algorithm = args.algorithm()
    assert algorithm.source is GroupWords and algorithm.credit.__self__ == GroupWords(strength=0.7)
    assert args.algorithm().credit.__self__ is not algorithm.credit.__self__  # without its state
    assert replace(args, strength=0.2, generation_batch_size=None).algorithm().credit.__self__.strength == 0.2
    assert json.loads(args.to_json_string())["strength"] == 0.7
    for again in (copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert type(again) is type(args) and again == args


@pytest.mark.slow
def test_a_process_that_does_not_know_the_class_reads_the_configuration(tmp_path):
    (tmp_path / "args").write_bytes(pickle.dumps(args_of(credit=GroupWords(strength=0.7))))
    read = "import pickle, sys; args = pickle.load(open(sys.argv[1], 'rb')); print(args.strength, args.credit)"
    words = [sys.executable, "-c", read, str(tmp_path / "args")]
    assert subprocess.check_output(words, cwd=ROOT, text=True).strip() == f"0.7 {WORDS}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 2, "count": 2.5}, "count must be a whole number, got 2.5"),
        ({"share": float("nan")}, "share must be finite"),
        ({"mode": "c"}, "mode must be one of 'a', 'b', got 'c'"),
        ({"on": "yes"}, "on must be True or False, got 'yes'"),
        ({"shares": 0.1}, "has no field 'shares': did you mean 'share'?"),
    ],
)
def test_values_are_checked_by_their_type(settings, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        args_of(credit=Plain, **settings)
    assert args_of(credit=Plain).most == float("inf") and args_of(credit=Plain(table={"a": 1})).table == {"a": 1}


def with_field(name, kind=float, **options):
    return dataclass(type("Named", (Base,), {"__annotations__": {name: kind}, name: field(**options)}))


@pytest.mark.parametrize("name", ["beta", "trace_decay", "algorithm", "device"])
def test_a_setting_with_the_name_of_something_else_is_refused(name):
    with pytest.raises(ValueError, match=f"credit=Named: CreditConfig has '{name}' too: rename the setting"):
        args_of(credit=with_field(name, default=1.0))


def test_a_setting_is_set_once():
    with pytest.raises(ValueError, match=r"GroupWords\(…\) has strength=0.7, and the configuration strength=0.5: set"):
        args_of(credit=GroupWords(strength=0.7), strength=0.5)
    assert args_of(credit=GroupWords(strength=0.7), strength=0.7).strength == 0.7


@dataclass
class Derived(Base):
    power: InitVar[float] = 0.5

    def __post_init__(self, power):
        self.doubled = 2 * power


class Counting(Base):
    def __init__(self):
        self.seen = []


def test_an_object_that_its_fields_do_not_make_again_is_kept():
    later, seen = Plain(), GroupWords()
    later.extra = 3
    for whole in (Derived(0.7), later, Counting()):
        assert args_of(credit=whole).algorithm().credit.__self__ is whole
    again = args_of(credit=seen).algorithm().credit.__self__
    assert again is not seen and again == seen
    later.share = 0.7
    args = args_of(credit=later)
    assert args.share == 0.7 and logged_settings(args)["share"] == 0.7
    with pytest.raises(ValueError, match=r"credit=Plain\(…\) has share=0.7, and the configuration share=0.2: set it"):
        replace(args, share=0.2, generation_batch_size=None)


def test_needs_and_states_are_checked_before_the_run():
    class Half(Base):
        state_dict = dict

    class Greedy(Base):
        needs = "hiden"

    for wrong, message in ((Half, "one of state_dict and load_state_dict"), (Greedy, "needs 'hiden': choose among")):
        with pytest.raises(ValueError, match=message):
            algorithm_of(wrong, args_of(), name="x")
    assert settings_of(Greedy) == () and settings_of(None) == ()


# Checkpoints


SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "lr_scheduler_type": "constant", "grows": True}


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_state(make_trainer, trained, tmp_path):
    whole = trained(credit=WORDS, output_dir=str(tmp_path / "whole"), **SAVED)
    half = trained(credit=WORDS, output_dir=str(tmp_path / "half"), **SAVED | {"max_steps": 1})
    checkpoint = tmp_path / "half" / "checkpoint-1"
    state = json.loads((checkpoint / "credit_state.json").read_text())
    assert state["parts"]["credit"] == {"batches": 1}
    record = json.loads((checkpoint / "credit_run.json").read_text())
    assert record["credit"]["name"] == f"{FILE.name}:GroupWords" and record["credit"]["settings"][0] == "strength"
    resumed = trained(credit=WORDS, output_dir=str(tmp_path / "half"), resume=str(checkpoint), **SAVED)
    assert same_weights(whole, resumed) and not same_weights(half, resumed)

    def refused(message, **settings):
        with pytest.raises(ValueError, match=message):
            trained(output_dir=str(checkpoint.parent), resume=str(checkpoint), **SAVED | settings)

    refused("strength 0.5 → 0.6", credit=WORDS, strength=0.6)
    refused(r"holds state that this run would lose \(credit\)", credit=GrowingOnly)
    without = trained(credit=GrowingOnly, output_dir=str(tmp_path / "without"), **SAVED | {"max_steps": 1})
    assert without.contract.algorithm.state_dict is None
    checkpoint = tmp_path / "without" / "checkpoint-1"
    refused("no .*state for credit='.*GroupWords'", credit=WORDS)
    refused("the code of `credit` changed", credit=Repeated)


@dataclass
class GrowingOnly(Base):
    grows: bool = False


class Repeated(GrowingOnly):
    pass
