"""No default changes unsaid: what 0.1 had otherwise is in a table and in the changelog, and told on resuming."""

import dataclasses
import json
import logging
import re
from pathlib import Path

import pytest
import torch
from conftest import EXTRACTS
from trl import GRPOConfig

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.dead_knobs import defaults
from trl_credit.trainer import old_defaults
from trl_credit.trainer.old_defaults import OLD_DEFAULTS, OldDefault, changed_since_0_1


# by algorithm: fields of ours ("base"), and what a preset had otherwise; the rest was TRL's
IN_0_1 = json.loads((EXTRACTS / "defaults_0.1.json").read_text())
CLASSES = {"base": CreditConfig} | {name: pair[0] for name, pair in ALGORITHMS.items()}
CHANGELOG = (Path(__file__).resolve().parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
KL = {"base": {}}  # of which KL is TRL's, as it was
SAVES = {"save_strategy": "steps", "save_steps": 1}


def as_json(value):
    return json.loads(json.dumps(value))


def changed(algo: str) -> dict[str, tuple]:
    """Fields that 0.1 had, of which it had another default → that, and today's."""
    before = {**as_json(defaults(GRPOConfig)), **IN_0_1["base"], **IN_0_1.get(algo, {})}
    today = as_json(defaults(CLASSES[algo]))
    return {knob: (x, today[knob]) for knob, x in before.items() if knob in today and today[knob] != x}


def make(algo, tmp_path, **settings) -> CreditConfig:
    return CLASSES[algo](output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False, **settings)


@pytest.mark.parametrize("algo", CLASSES)
def test_every_default_that_changed_is_in_the_table(algo, tmp_path):
    assert algo in IN_0_1
    lines = [line for line in OLD_DEFAULTS if line.applies(make(algo, tmp_path, **KL.get(algo, {"beta": 0.1})))]
    table = {line.knob: as_json(line.value) for line in lines}
    assert {line.knob for line in lines if line.at} == {"policy_loss", "mask_normalizer"}
    for knob, (before, _) in changed(algo).items():
        assert table.get(knob) == before, f"{algo}: {knob} was {before!r} in 0.1"
    fields = {f.name for f in dataclasses.fields(CreditConfig)}
    assert all(line.knob in fields for line in OLD_DEFAULTS) and len(lines) == len(table)


@pytest.mark.parametrize("line", OLD_DEFAULTS, ids=lambda line: line.knob)
def test_the_changelog_has_the_old_value(line):
    assert line.at is None or f'`{line.knob}="{line.at}"`' in CHANGELOG
    assert line.at or re.search(rf"`{line.knob}`\s+`?{re.escape(str(line.value))}`?\s+→", CHANGELOG)


def test_what_a_run_is_told(tmp_path):
    both = {"difficulty_rate": [1.0, 6.0], "difficulty_rate_min": [0.01, 0.02]}
    assert changed_since_0_1(make("ha_dw", tmp_path)) == both
    chain = {"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "none"}
    assert changed_since_0_1(make("vine_ppo", tmp_path, **chain)) == {
        "loss_type": ["dapo", "grpo"],
        "policy_loss": ["policy_iteration_code", "policy_iteration"],
    }
    assert changed_since_0_1(make("spo_chain", tmp_path, loss_type="bnpo", process_reward_weight=1.0)) == {
        "process_reward_best_of": [4, None]
    }
    assert changed_since_0_1(make("spo_tree", tmp_path)) == {"prompt_average": [False, True]}
    assert changed_since_0_1(make("gspo", tmp_path, difficulty="history")) == both
    assert changed_since_0_1(make("grpo", tmp_path)) == {}  # which has no belief
    assert changed_since_0_1(make("ha_dw", tmp_path, difficulty="hard")) == {}  # whose belief takes no steps
    assert changed_since_0_1(make("ha_dw", tmp_path, difficulty_rate=1.0, difficulty_rate_min=0.5)) == {}


def test_a_line_of_some_runs_alone(tmp_path, monkeypatch):
    lines = (
        OldDefault("loss_type", "bnpo", lambda config: config.rollouts == "chain"),
        OldDefault("truncated_value", 0.0),
    )
    monkeypatch.setattr(old_defaults, "OLD_DEFAULTS", lines)
    assert changed_since_0_1(make("grpo", tmp_path)) == {}
    assert changed_since_0_1(make("spo_tree", tmp_path)) == {"truncated_value": [0.0, None]}
    found = changed_since_0_1(make("vine_ppo", tmp_path))
    assert found == {"loss_type": ["bnpo", defaults(CLASSES["vine_ppo"])["loss_type"]], "truncated_value": [0.0, None]}


def test_a_checkpoint_of_0_1_and_none_of_today(make_trainer, tmp_path, caplog):
    make_trainer("ha_dw", max_steps=1, **SAVES).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    said = "trl_credit 0.1 had otherwise: difficulty_rate 1.0 → 6.0, difficulty_rate_min 0.01 → 0.02."
    with caplog.at_level(logging.WARNING):
        make_trainer("ha_dw", max_steps=2, **SAVES).train(resume_from_checkpoint=str(checkpoint))
    assert "0.1" not in caplog.text
    (checkpoint / "credit_run.json").unlink()
    old = {"difficulty_rate": 1.0, "difficulty_rate_min": 0.01}
    for given, told in (({}, True), (old, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            trainer = make_trainer("ha_dw", max_steps=2, **SAVES, **given)
            trainer.train(resume_from_checkpoint=str(checkpoint))
        assert trainer.state.global_step == 2 and caplog.text.count(said) == told
        assert caplog.text.count("keeps no identity") == 1


def test_the_data_of_this_test_is_what_0_1_saved():
    saved = torch.load(EXTRACTS / "training_args_0.1.bin", weights_only=False)
    for knob, value in (IN_0_1["base"] | IN_0_1["s_trace"]).items():
        if knob in vars(saved):
            assert as_json(getattr(saved, knob)) == value, knob
    assert len(IN_0_1["base"].keys() & vars(saved).keys()) >= 45
