"""Custom functions change the loss as they should, by closed forms and runs of built-in ones; and they have names."""

import json
from dataclasses import replace

import pytest
import torch
from custom_functions import FILE, args_of, custom
from toy_loss import check_close, check_loss, k3, run, toy
from weight_helpers import same_weights

from trl_credit import Credit, assign_credit
from trl_credit.hub.describe import describe_credit
from trl_credit.support.functions import name_of, source_of


class Counting:
    """Counts its calls."""

    def __init__(self):
        self._calls = 0

    def credit(self, config, tokens):
        self._calls += 1
        return assign_credit(config, tokens)

    def state_dict(self):
        return {"calls": self._calls}

    def load_state_dict(self, state):
        self._calls = state["calls"]


# Weights, advantages, losses and masks


def test_a_new_advantage_on_the_weight_of_the_knobs(make_trainer, toy_loss):
    t = toy()
    share = (t["mask"].cumsum(-1) - 1).double() / t["mask"].sum(-1, keepdim=True)
    by_name = run(make_trainer("s_trace", beta=0.0, credit=custom("later_is_less")), toy_loss, t)
    t["advantages"] = t["advantages"].unsqueeze(1) * (1 - 0.5 * share)
    by_hand = run(make_trainer("s_trace", beta=0.0), toy_loss, t)
    check_close(by_name, by_hand)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo"])
def test_a_custom_loss(make_trainer, toy_loss, loss_type, beta):
    t = toy()
    knobs = {"loss_type": loss_type, "beta": beta} | ({"use_bias_correction_kl": False} if beta else {})
    trainer = make_trainer("base", credit=custom("weighted_kl"), **knobs)
    result = run(trainer, toy_loss, t)
    d = t["logps"] - t["old"]
    gain = d.exp() * t["advantages"].unsqueeze(1) - 0.1 * d.square() - beta * k3(t)
    gain = gain * t["mask"]
    rows = (gain.sum(-1) / t["mask"].sum(-1)).mean()
    expected = -(rows if loss_type == "grpo" else gain.sum() / t["mask"].sum())
    check_loss(result, expected, t["logps"], rtol=1e-12, atol=1e-13)
    names = trainer._metrics["eval"]
    assert "credit/clip_fraction" not in names and "credit/abs_advantage/quarter_1" in names


def test_the_mask_of_a_credit_zeroes_terms_and_keeps_the_normaliser(make_trainer, toy_loss):
    def unsure(config, tokens):
        return Credit(None, tokens.advantages, mask=tokens.logp_t.detach() < -1)

    t = toy()
    _, grad = run(make_trainer("base", loss_type="grpo", credit=unsure), toy_loss, t)
    _, plain = run(make_trainer("base", loss_type="grpo"), toy_loss, t)
    kept = (t["logps"].detach() < -1) & t["mask"].bool()
    assert kept.any() and not kept.all()
    assert torch.equal(grad, torch.where(kept, plain, 0.0))


@pytest.mark.parametrize(
    ("algo", "knob", "built_in", "function", "settings"),
    [
        ("opo", "baseline", "optimal", "same_baseline", {}),
        ("s_trace", "selector", "entropy", "same_selector", {}),
        # counted over the whole batch
        ("base", "token_mask", "probability", "same_mask", {"loss_type": "dapo", "probability_threshold": 0.3}),
    ],
)
def test_the_built_in_function_by_name_gives_the_same_run(trained, tmp_path, algo, knob, built_in, function, settings):
    left = trained(algo, output_dir=str(tmp_path / "built-in"), **{knob: built_in}, **settings)
    right = trained(algo, output_dir=str(tmp_path / "custom"), **{knob: custom(function)}, **settings)
    assert same_weights(left, right) and right.args.custom_functions() == {knob: custom(function)}
    rows = [trainer.state.log_history[0] for trainer in (left, right)]
    if knob == "token_mask":
        assert rows[0]["credit/kept_fraction"] == rows[1]["credit/kept_fraction"]


def test_metrics_describe_the_weight_that_was_used(make_trainer, toy_loss):
    def other_weight(config, tokens):
        return replace(assign_credit(config, tokens), log_weight=3.0 + tokens.logp_t - tokens.logp_t.detach())

    def only_advantage(config, tokens):
        return replace(assign_credit(config, tokens), advantage=torch.ones_like(tokens.logp_t.detach()))

    replaced, kept = (make_trainer("s_trace", beta=0.0, credit=f) for f in (other_weight, only_advantage))
    run(replaced, toy_loss, toy()), run(kept, toy_loss, toy())
    names = replaced._metrics["eval"]
    assert "credit/effective_horizon" not in names and 0.0 < names["credit/selected_fraction"][0] < 1.0
    positive = (toy()["advantages"] > 0).unsqueeze(1) & toy()["mask"].bool()
    assert names["credit/clip_fraction"] == pytest.approx([(positive.sum() / toy()["mask"].sum()).item()])
    assert kept._metrics["eval"]["credit/effective_horizon"][0] > 0


def test_an_object_keeps_its_state_and_is_on_the_card(make_trainer, trained):
    """The calls of the contract's look at the first micro-batch are not counted."""
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    make_trainer(credit=Counting, **settings).train()
    resumed = trained(credit=Counting, **settings | {"max_steps": 3}, resume=True)
    assert resumed.contract.algorithm.state_dict() == {"calls": 3}
    with pytest.raises(ValueError, match="would lose.*credit"):
        make_trainer(**settings).train(resume_from_checkpoint=True)
    (row,) = [row for row in describe_credit(resumed.args) if row.name == "credit"]
    assert "Counting of test_custom_credit.py, SHA-256 " in row.value and "Counts its calls." in row.value


# Tokens and advantages


def test_turns_are_those_before_the_mask(make_trainer, toy_loss):
    seen = []

    def credit(config, tokens):
        seen.append(tokens)
        return assign_credit(config, tokens)

    mask = {"token_mask": "probability", "probability_threshold": 0.4, "released_code": ["spo_normalizer"]}
    trainer = make_trainer(credit=credit, **mask)
    t = toy()
    run(trainer, toy_loss, t)
    second = torch.zeros_like(t["mask"])
    second[1, 4:] = 1  # after the tool's tokens
    assert torch.equal(seen[0].turn_ids, second.where(t["mask"].bool(), -1))
    assert seen[0].mask_t.sum() < t["mask"].sum()


# Names of functions: files, objects and closures, in configurations, checkpoints and recipes


def weighted(k):
    def credit(config, tokens):
        return Credit(None, k * tokens.advantages)

    return credit


def test_objects_have_names():
    assert name_of(assign_credit) == "trl_credit.loss.assignment.assign_credit"
    functions = [weighted(k) for k in (0, 1, 0)]  # one source
    names = [name_of(f) for f in functions]
    assert names[0].startswith("credit@") and names[1].startswith("credit@") and names[2] == f"{names[0]}-2"
    assert len(set(names)) == 3 and name_of(functions[0]) == names[0]
    a, b = (args_of(credit=f) for f in functions[:2])
    assert [x.custom_function("credit").__wrapped__ for x in (a, b)] == functions[:2]
    assert len(source_of(a.credit, what="credit").digest) == 64
    by_file = source_of(custom("half_decay"), what="credit")
    assert by_file.file == FILE and by_file.digest != source_of(a.credit, what="credit").digest


def notebook_function():
    """A function as a cell defines it: in `__main__`, from a source that is no file."""
    scope = {"__name__": "__main__"}
    cell = "def my_credit(config, tokens):\n    return assign_credit(config, tokens)\n"
    exec(cell, {"assign_credit": assign_credit}, scope)
    return scope["my_credit"]


@pytest.mark.parametrize("kind", ["lambda", "notebook", "file"])
def test_saving_and_resuming_with_a_function(make_trainer, trained, tmp_path, kind):
    made = {"lambda": lambda config, tokens: assign_credit(config, tokens), "notebook": notebook_function()}
    function = made.get(kind, custom("later_is_less"))
    settings = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "credit": function}
    reference = make_trainer(max_steps=4, output_dir=str(tmp_path / "reference"), **settings)
    assert isinstance(reference.args.credit, str)
    reference.train()
    checkpoint = tmp_path / "reference" / "checkpoint-2"
    args = torch.load(checkpoint / "training_args.bin", weights_only=False)
    assert args.credit == reference.args.credit and json.loads(args.to_json_string())["credit"] == args.credit
    resumed = trained(max_steps=4, **settings, resume=str(checkpoint))
    assert same_weights(resumed, reference)


def test_functions_stay_what_they_were_and_so_does_their_digest(tmp_path, monkeypatch):
    path, text = tmp_path / "changing.py", "def f(config, tokens):\n    return 1\n"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    args = args_of(credit="changing.py:f")
    digest = source_of(args.credit, what="credit").digest
    monkeypatch.chdir("/")
    path.unlink()
    assert args.custom_function("credit")(None, None) == 1
    assert source_of(args.credit, what="credit").digest == digest
    path.write_text(text.replace("1", "2"))
    monkeypatch.chdir(tmp_path)
    again = args_of(credit="changing.py:f")  # reads the file again
    assert again.custom_function("credit")(None, None) == 2
    assert source_of(again.credit, what="credit").digest != digest
