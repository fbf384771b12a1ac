"""Algorithms from outside of the package: by name and as objects, through the real trainer, and what is refused."""

import functools
import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trl
from conftest import toy_inputs
from test_contract import run, toy

import trl_credit
from trl_credit import Credit, CreditConfig, CreditTrainer, assign_credit
from trl_credit.credit.advantages import whiten
from trl_credit.hub.describe import describe_credit
from trl_credit.hub.recipe import changed
from trl_credit.names import name_of, source_of
from trl_credit.testing import check_credit


FILE = Path(__file__).parent / "data" / "own_functions.py"


spec = importlib.util.spec_from_file_location("own_functions_of_tests", FILE)
FILE_MODULE = importlib.util.module_from_spec(spec)
spec.loader.exec_module(FILE_MODULE)


def own(name):
    return f"{FILE}:{name}"


def trained(make_trainer, tmp_path, folder, *args, **settings):
    trainer = make_trainer(*args, output_dir=str(tmp_path / folder), **settings)
    torch.manual_seed(3)
    trainer.train()
    return trainer


def same_weights(left, right):
    return all(torch.equal(p, right.model.get_parameter(name)) for name, p in left.model.named_parameters())


# What a function gives is what is trained on


def test_a_new_weight_in_closed_form(make_trainer, toy_loss):
    by_knobs = make_trainer("base", loss_type="grpo", importance="eligible", trace_lambda=0.5)
    by_name = make_trainer("base", loss_type="grpo", credit=own("half_decay"))
    for left, right in zip(run(by_knobs, toy_loss, toy()), run(by_name, toy_loss, toy()), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


def test_a_new_advantage_on_the_weight_of_the_knobs(make_trainer, toy_loss):
    t = toy()
    share = (t["mask"].cumsum(-1) - 1).double() / t["mask"].sum(-1, keepdim=True)
    by_name = run(make_trainer("s_trace", beta=0.0, credit=own("later_is_less")), toy_loss, t)
    t["advantages"] = t["advantages"].unsqueeze(1) * (1 - 0.5 * share)
    by_hand = run(make_trainer("s_trace", beta=0.0), toy_loss, t)
    for left, right in zip(by_name, by_hand, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo"])
def test_a_loss_of_its_own(make_trainer, toy_loss, loss_type, beta):
    t = toy()
    knobs = {"loss_type": loss_type, "beta": beta, "use_bias_correction_kl": False}
    trainer = make_trainer("base", credit=own("weighted_kl"), **knobs)
    loss, grad = run(trainer, toy_loss, t)
    d, k = t["logps"] - t["old"], t["ref"] - t["logps"]
    gain = d.exp() * t["advantages"].unsqueeze(1) - 0.1 * d.square() - beta * (k.exp() - k - 1)
    gain = gain * t["mask"]
    rows = (gain.sum(-1) / t["mask"].sum(-1)).mean()
    expected = -(rows if loss_type == "grpo" else gain.sum() / t["mask"].sum())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, t["logps"])[0], rtol=1e-10, atol=1e-13)
    names = trainer._metrics["eval"]
    assert "credit/clip_fraction" not in names and "credit/abs_advantage/quarter_1" in names


def test_a_method_of_a_subclass_takes_the_place_of_a_function(make_trainer, toy_loss):
    class Doubled(CreditTrainer):
        def credit(self, tokens):
            credit = super().credit(tokens)
            return replace(credit, advantage=2 * credit.advantage)

    plain, doubled = make_trainer("base"), make_trainer((CreditConfig, Doubled))
    torch.testing.assert_close(run(doubled, toy_loss, toy())[1], 2 * run(plain, toy_loss, toy())[1])

    class Wrong(CreditTrainer):
        def credit(self, tokens):
            return tokens.advantages

    with pytest.raises(ValueError, match="'Wrong.credit' returned a Tensor: return trl_credit.Credit"):
        run(make_trainer((CreditConfig, Wrong)), toy_loss, toy())


def test_its_own_mask_zeroes_terms_and_moves_no_normaliser(make_trainer, toy_loss):
    def unsure(config, tokens):
        return Credit(None, tokens.advantages, mask=tokens.logp_t.detach() < -1)

    t = toy()
    _, grad = run(make_trainer("base", loss_type="grpo", credit=unsure), toy_loss, t)
    _, plain = run(make_trainer("base", loss_type="grpo"), toy_loss, t)
    kept = (t["logps"].detach() < -1) & t["mask"].bool()
    assert kept.any() and not kept.all()
    assert torch.equal(grad, torch.where(kept, plain, 0.0))


def test_a_token_mask_moves_the_normaliser(make_trainer, toy_loss):
    for loss_type in ("grpo", "bnpo", "dapo", "dr_grpo"):
        knobs = {"loss_type": loss_type, "probability_threshold": 0.4, "beta": 0.1, "use_bias_correction_kl": False}
        built_in = run(make_trainer("base", token_mask="probability", **knobs), toy_loss, toy())
        by_name = run(make_trainer("base", token_mask=own("same_mask"), **knobs), toy_loss, toy())
        assert all(torch.equal(left, right) for left, right in zip(built_in, by_name, strict=True))


def test_a_token_mask_is_counted_over_the_batch(make_trainer, tmp_path):
    knobs = {"loss_type": "dapo", "probability_threshold": 0.3, "max_steps": 2}
    runs = [
        trained(make_trainer, tmp_path, str(i), token_mask=mask, **knobs)
        for i, mask in enumerate(("probability", own("same_mask")))
    ]
    assert same_weights(*runs)
    assert runs[0].state.log_history[0]["credit/kept_fraction"] == runs[1].state.log_history[0]["credit/kept_fraction"]


@pytest.mark.parametrize(
    ("algo", "knob", "function"),
    [("opo", "baseline", "same_baseline"), ("s_trace", "selector", "same_selector")],
)
def test_the_built_in_function_by_name_gives_the_same_run(make_trainer, tmp_path, algo, knob, function):
    left = trained(make_trainer, tmp_path, "built-in", algo)
    right = trained(make_trainer, tmp_path, "own", algo, **{knob: own(function)})
    assert same_weights(left, right) and right.args.own_functions() == {knob: own(function)}


def test_a_segmentation_of_ones_own(make_trainer, tmp_path):
    chain = {"rollouts": "chain", "rollouts_per_state": 2, "loss_type": "dapo", "max_steps": 2}
    left = trained(make_trainer, tmp_path, "built-in", segmentation="fixed_length", segment_length=3, **chain)
    right = trained(make_trainer, tmp_path, "own", segmentation=own("every_third"), **chain)
    assert same_weights(left, right)
    assert right.state.log_history[0]["credit/segments_per_response"] > 1


@pytest.mark.parametrize("rollouts", ["chain", "tree"])
def test_credit_of_ones_own_on_rollouts(make_trainer, tmp_path, rollouts):
    seen = []

    def spy(config, tokens):
        seen.append(tokens)
        return assign_credit(config, tokens)

    knobs = {"rollouts": rollouts, "loss_type": "dapo", "temperature": 1.3}
    knobs |= {"rollouts_per_state": 2} if rollouts == "chain" else {}
    left = trained(make_trainer, tmp_path, "built-in", **knobs)
    right = trained(make_trainer, tmp_path, "own", credit=spy, **knobs)
    assert same_weights(left, right)
    assert seen[0].advantages.dim() == 2 and seen[0].segment_ids.max() >= (1 if rollouts == "chain" else 0)
    assert ((seen[0].segment_ids >= 0) <= seen[0].mask_t.bool()).all()


# Metrics


def test_metrics_describe_the_weight_that_was_used(make_trainer, toy_loss):
    def other_weight(config, tokens):
        return replace(assign_credit(config, tokens), log_weight=3.0 + tokens.logp_t - tokens.logp_t.detach())

    def only_advantage(config, tokens):
        return replace(assign_credit(config, tokens), advantage=torch.ones_like(tokens.logp_t.detach()))

    replaced, kept = (make_trainer("s_trace", beta=0.0, credit=f) for f in (other_weight, only_advantage))
    run(replaced, toy_loss, toy()), run(kept, toy_loss, toy())
    names = replaced._metrics["eval"]
    assert "credit/trace_mass" not in names and "credit/selected_fraction" in names
    positive = (toy()["advantages"] > 0).unsqueeze(1) & toy()["mask"].bool()
    assert names["credit/clip_fraction"] == pytest.approx([(positive.sum() / toy()["mask"].sum()).item()])
    assert kept._metrics["eval"]["credit/trace_mass"][0] > 0


# Objects


def weighted(k):
    def credit(config, tokens):
        return Credit(None, k * tokens.advantages)

    return credit


def test_objects_have_names(tmp_path):
    assert name_of(assign_credit) == "trl_credit.assignment.assign_credit"
    functions = [weighted(k) for k in range(2)]  # one source
    names = [name_of(f) for f in functions]
    assert names[0].startswith("credit@") and names[1] == f"{names[0]}-2" and name_of(functions[0]) == names[0]
    a, b = (CreditConfig(output_dir=str(tmp_path), report_to="none", credit=f) for f in functions)
    assert a.own_function("credit") is functions[0] and b.own_function("credit") is functions[1]
    assert len(source_of(a.credit, what="credit").digest) == 64
    by_file = source_of(own("half_decay"), what="credit")
    assert by_file.file == FILE and by_file.digest != source_of(a.credit, what="credit").digest


def notebook_function():
    """A function as a cell defines it: in `__main__`, from a source that is no file."""
    scope = {"__name__": "__main__"}
    cell = "def my_credit(config, tokens):\n    return assign_credit(config, tokens)\n"
    exec(cell, {"assign_credit": assign_credit}, scope)
    return scope["my_credit"]


@pytest.mark.parametrize("kind", ["lambda", "notebook", "file"])
def test_saving_and_resuming_with_a_function(make_trainer, tmp_path, kind):
    function = {
        "lambda": lambda config, tokens: assign_credit(config, tokens),
        "notebook": notebook_function(),
        "file": own("later_is_less"),
    }[kind]
    settings = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "credit": function}
    whole = make_trainer(max_steps=4, output_dir=str(tmp_path / "whole"), **settings)
    assert isinstance(whole.args.credit, str)
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    args = torch.load(checkpoint / "training_args.bin", weights_only=False)
    assert args.credit == whole.args.credit and json.loads(args.to_json_string())["credit"] == args.credit
    resumed = make_trainer(max_steps=4, **settings)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert same_weights(resumed, whole)


def test_tensorboard_takes_the_configuration(make_trainer, tmp_path):
    pytest.importorskip("tensorboard")
    make_trainer(credit=lambda config, tokens: assign_credit(config, tokens), report_to="tensorboard").train()


def test_a_configuration_whose_function_is_not_here_says_so(tmp_path, tiny_model):
    args = CreditConfig(
        output_dir=str(tmp_path), report_to="none", credit=lambda config, tokens: assign_credit(config, tokens)
    )
    torch.save(args, tmp_path / "args.bin")
    code = (
        "import sys, torch; from trl_credit import CreditTrainer; "
        "args = torch.load(sys.argv[1], weights_only=False); CreditTrainer(sys.argv[2], lambda **k: [], args)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "args.bin"), tiny_model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert f"credit {args.credit!r} was given as an object" in done.stderr and "file.py:function" in done.stderr


# Refusals


def bad(kind):
    def function(config, tokens):
        good = assign_credit(config, tokens)
        wide = torch.ones_like(tokens.logp_t.detach())
        return {
            "tuple": (None, tokens.advantages),
            "W of one column": replace(good, log_weight=tokens.logp_t[:, :1]),
            "W without a graph": replace(good, log_weight=wide),
            "W that is NaN": replace(good, log_weight=tokens.logp_t * torch.nan),
            "A by token": replace(good, advantage=wide[0]),
            "A of integers": replace(good, advantage=wide.long()),
            "A with a graph": replace(good, advantage=tokens.logp_t * 1.0),
            "A that is infinite": replace(good, advantage=wide * torch.inf),
            "A as a list": replace(good, advantage=[1.0]),
            "M of one row": replace(good, mask=wide[:1]),
            "z of one row": replace(good, selected=wide[0]),
        }[kind]

    return function


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tuple", r"returned a tuple: return trl_credit.Credit\(log_weight"),
        ("W of one column", r"log_weight of shape \(4, 1\): return one of shape \(4, 7\)"),
        ("W without a graph", "log_weight without a graph"),
        ("W that is NaN", "log_weight with NaN or infinity at loss tokens"),
        ("A by token", r"advantage of shape \(7,\): return one of shape \(4,\) or"),
        ("A of integers", "advantage of type torch.int64: return a floating tensor"),
        ("A with a graph", "advantage with a graph.*carries_loss = True"),
        ("A that is infinite", "advantage with NaN or infinity"),
        ("A as a list", "advantage as a list: return a tensor"),
        ("M of one row", r"mask of shape \(1, 7\)"),
        ("z of one row", r"selected of shape \(7,\)"),
    ],
)
def test_what_is_wrong_is_refused_in_the_first_step(make_trainer, toy_loss, kind, message):
    trainer = make_trainer("base", credit=bad(kind))
    with pytest.raises(ValueError, match=f"credit function 'function@.*{message}.*your_own_algorithm"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize(
    ("knobs", "fix"),
    [
        ({"loss_type": "cispo"}, "set loss_type to 'dapo'"),
        ({"loss_type": "vespo"}, "set loss_type to 'dapo'"),
        ({"loss_type": "sapo"}, "set loss_type to 'dapo'"),
        ({"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl=False"),
        ({"loss_type": "grpo", "importance": "sequence"}, "importance='token'"),
    ],
)
def test_a_weight_is_refused_where_a_trace_is(make_trainer, toy_loss, knobs, fix):
    trainer = make_trainer("base", credit=own("half_decay"), **knobs)
    with pytest.raises(ValueError, match=f"half_decay.* (returned a log_weight|sets the importance weight) .*{fix}"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize("loss_type", ["cispo", "vespo", "sapo"])
def test_a_loss_of_its_own_is_refused_where_the_loss_is_another(make_trainer, toy_loss, loss_type):
    trainer = make_trainer("base", credit=own("weighted_kl"), loss_type=loss_type)
    with pytest.raises(ValueError, match="weighted_kl.* returned a loss of its own .*set loss_type to 'dapo'"):
        run(trainer, toy_loss, toy())


def test_a_loss_of_its_own_takes_no_weight(make_trainer, toy_loss):
    def both(config, tokens):
        return Credit(tokens.logp_t * 1.0, tokens.logp_t * 1.0)

    both.carries_loss = True
    with pytest.raises(ValueError, match="carries_loss and returned a log_weight other than 0"):
        run(make_trainer("base", credit=both), toy_loss, toy())


def test_other_parts_than_at_first_are_refused(make_trainer, toy_loss):
    calls = []

    def moody(config, tokens):
        calls.append(1)
        return Credit(None, tokens.advantages, mask=None if len(calls) == 1 else tokens.mask_t)

    trainer = make_trainer("base", credit=moody)
    run(trainer, toy_loss, toy())
    with pytest.raises(ValueError, match="other parts of a Credit"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"credit": "my_credit"}, "credit='my_credit' must be package.module.function"),
        ({"credit": "nowhere.py:f"}, "there is no file 'nowhere.py'"),
        ({"credit": f"{FILE}:nothing"}, "'nothing' is not a function there"),
        ({"credit": "trl_credit.nowhere.f"}, "No module named"),
        ({"credit": own("half_decay"), "policy_loss": "policy_iteration", "beta": 0.1}, "whole credit function"),
        ({"segmentation": own("every_third")}, "set rollouts='chain'"),
        ({"selector": own("same_selector")}, "importance='eligible'"),
        ({"token_mask": own("same_mask"), "importance": "sequence"}, "importance='sequence_token'"),
        ({"baseline": own("same_baseline"), "rollouts": "chain"}, "set baseline='group'"),
    ],
)
def test_settings_are_refused_when_the_configuration_is_built(tmp_path, knobs, message):
    with pytest.raises(ValueError, match=message):
        CreditConfig(output_dir=str(tmp_path), report_to="none", **knobs)


def test_a_file_that_fails_says_how(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(ValueError, match="broken.py raised SyntaxError"):
        CreditConfig(output_dir=str(tmp_path), report_to="none", credit=f"{tmp_path}/broken.py:f")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"selector": lambda entropy_t, *, rate, mask_t: entropy_t[0]}, "selector .* zeros and ones.*returned shape"),
        ({"selector": lambda entropy_t, *, rate, mask_t: entropy_t}, "selector .* returned other values"),
        ({"token_mask": lambda old, *, threshold, mask_t: None}, "token_mask .* it returned NoneType"),
        (
            {"baseline": lambda r, *, lengths, num_generations: r[:1]},
            r"baseline .* shape \(8,\).*returned shape \(1,\)",
        ),
        ({"baseline": lambda r, *, lengths, num_generations: r / 0}, "with NaN or infinity"),
        ({"segmentation": lambda o, *, completion_ids, decode, mask_t: o}, "segmentation .* bool tensor"),
    ],
)
def test_results_of_other_functions_are_checked(make_trainer, knobs, message):
    more = {"importance": "eligible"} if "selector" in knobs else {}
    more |= {"rollouts": "chain", "loss_type": "dapo"} if "segmentation" in knobs else {}
    with pytest.raises(ValueError, match=message):
        make_trainer(**knobs, **more).train()


# The contract


@pytest.mark.parametrize("name", ["half_decay", "later_is_less", "weighted_kl"])
def test_check_credit_passes_what_is_right(name, tmp_path):
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", credit=own(name))
    done = check_credit(config.own_function("credit"), config=config)
    assert done[0] == "form" and len(done) == 9


@pytest.mark.parametrize(
    "knobs", [{}, {"importance": "eligible", "selector": "entropy"}, {"importance": "lambda_trace"}]
)
def test_built_in_credit_passes(knobs, tmp_path):
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", **knobs)
    limit = {"trace_lambda": 0.0} if knobs else {}
    assert check_credit(assign_credit, config=config, is_grpo_when=limit)[-1] == "GRPO"


def test_check_credit_says_which_property_fails():
    def over_padding(config, tokens):  # a trace that runs over tool tokens and padding
        return Credit(discounted(tokens.logp_t), tokens.advantages)

    def discounted(x_t):
        return (x_t - x_t.detach()).cumsum(-1)

    def by_reference(config, tokens):
        return Credit(None, tokens.advantages + 0 * (tokens.ref_logp_t * tokens.mask_t).sum(-1))

    def by_row(config, tokens):
        return Credit(
            None, tokens.advantages.reshape(len(tokens.mask_t), -1)[:, 0] * (1 + (tokens.advantages.dim() == 2))
        )

    def over_rows(config, tokens):
        return Credit(None, tokens.advantages - tokens.advantages.mean())

    def by_place(config, tokens):
        rows = tokens.advantages.reshape(len(tokens.mask_t), -1)[:, 0]
        return Credit(None, rows * (1 + torch.arange(len(rows), dtype=rows.dtype)))

    def writes(config, tokens):
        tokens.advantages.mul_(2.0)
        return Credit(None, tokens.advantages.clone())

    def by_width(config, tokens):
        return Credit(None, tokens.advantages / tokens.logp_t.size(1))

    def half(config, tokens):
        is_narrow = tokens.advantages.dtype == torch.float32
        return Credit(None, tokens.advantages + 0.01 * is_narrow)

    def by_grad(config, tokens):
        return Credit(None, tokens.advantages * (1.0 if tokens.logp_t.requires_grad else 2.0))

    for function, name, kwargs in (
        (lambda config, tokens: None, "form", {}),
        (by_reference, "inputs", {}),
        (by_row, "inputs", {}),
        (writes, "inputs unchanged", {}),
        (over_padding, "masked tokens", {}),
        (by_width, "padding", {}),
        (by_place, "row order", {}),
        (over_rows, "micro-batches", {}),
        (half, "float32", {}),
        (by_grad, "evaluation", {}),
        (lambda config, tokens: Credit(None, 2 * tokens.advantages), "GRPO", {"is_grpo_when": {}}),
    ):
        with pytest.raises(AssertionError, match=f"fails '{name}'"):
            check_credit(function, **kwargs)
    assert "micro-batches" not in check_credit(over_rows, skip=["micro-batches", "row order"])
    with pytest.raises(ValueError, match="no property 'x'"):
        check_credit(assign_credit, skip=["x"])


# What is known of tokens


def test_tokens_of_a_conversation_know_their_turns(make_trainer):
    seen = []

    def spy(config, tokens):
        seen.append(tokens)
        return assign_credit(config, tokens)

    def rollout(prompts, trainer):
        n = len(prompts)
        written = [[1, 1, 0, 0, 1, 1], [1, 1, 1, 1]] * (n // 2)
        return {
            "prompt_ids": [[3]] * n,
            "completion_ids": [[5 + i % 3 for _ in mask[:-1]] + [1] for i, mask in enumerate(written)],
            "logprobs": None,
            "env_mask": written,
        }

    trainer = make_trainer("s_trace", credit=spy, trainer_kwargs={"rollout_func": rollout}, shuffle_dataset=False)
    trainer.train()
    rows = {tuple(row) for tokens in seen for row in tokens.turn_ids.tolist()}
    assert rows == {(0, 0, -1, -1, 1, 1), (0, 0, 0, 0, -1, -1)}
    assert {tuple(row) for tokens in seen for row in tokens.segment_ids.tolist()} == {
        (0, 0, -1, -1, 0, 0),
        (0, 0, 0, 0, -1, -1),
    }


def test_turns_are_those_before_the_mask(make_trainer, toy_loss):
    seen = []
    trainer = make_trainer(
        credit=lambda config, tokens: seen.append(tokens) or assign_credit(config, tokens),
        token_mask="probability",
        probability_threshold=0.4,
        mask_normalizer="code",
    )
    t = toy()
    run(trainer, toy_loss, t)
    second = torch.zeros_like(t["mask"])
    second[1, 4:] = 1  # behind the tool's tokens
    assert torch.equal(seen[0].turn_ids, second.where(t["mask"].bool(), -1))
    assert seen[0].mask_t.sum() < t["mask"].sum()


# Advantages


@pytest.mark.parametrize("kind", ["none", "batch", "microbatch"])
def test_the_floor_acts_once_and_last(make_trainer, kind):
    seen = []
    settings = {"max_steps": 1, "temperature": 1.3}
    floored = make_trainer(
        credit=lambda config, tokens: seen.append(tokens.advantages) or assign_credit(config, tokens),
        advantage_floor=-0.2,
        whiten_advantages=kind,
        log_completions=True,
        **settings,
    )
    plain, made = make_trainer(**settings), []
    make = plain._generate_and_score_completions
    plain._generate_and_score_completions = lambda inputs: made.append(make(inputs)) or made[-1]
    for trainer in (plain, floored):
        torch.manual_seed(7)
        trainer.train()
    a_t = made[0]["advantages"].unsqueeze(1).expand_as(made[0]["completion_mask"])
    if kind != "none":  # with values as they were before any floor
        a_t = whiten(a_t, mask_t=made[0]["completion_mask"])
    assert a_t.min() < -0.2
    found = seen[0] if seen[0].dim() == 1 else seen[0][:, 0]  # rows are shuffled before the loss
    torch.testing.assert_close(found.sort().values, a_t[:, 0].clamp(min=-0.2).sort().values, rtol=1e-6, atol=1e-7)
    if kind != "microbatch":
        assert sorted(floored._logs["advantages"]) == pytest.approx(sorted(found.tolist()))


# TRL's own fields


def test_trls_sequence_level_means_what_it_means_in_trl(make_trainer, toy_loss, tmp_path):
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence", "top_entropy_quantile": 0.5}
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    ours = make_trainer("base", **settings)
    assert ours.args.importance == "sequence"
    for left, right in zip(run(theirs, toy_loss, toy()), run(ours, toy_loss, toy()), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_luspo_means_what_it_means_in_trl(make_trainer, toy_loss, level):
    settings = {"loss_type": "luspo", "importance_sampling_level": level, "beta": 0.04}
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    for left, right in zip(
        run(theirs, toy_loss, toy()), run(make_trainer("base", **settings), toy_loss, toy()), strict=True
    ):
        assert torch.equal(left, right)


def test_nothing_of_it_is_lost_in_evaluation(make_trainer):
    trainer = make_trainer(credit=own("half_decay"), per_device_eval_batch_size=8)
    trainer.eval_dataset = trainer.train_dataset.select(range(4))
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_inputs_of_the_loss_stay_as_they_were(make_trainer, toy_loss):
    trainer, t = make_trainer(credit=own("later_is_less")), toy()
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], old_per_token_logps=t["old"])
    keys = set(inputs)
    toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    assert set(inputs) == keys and inputs["advantages"] is t["advantages"]


def test_every_public_name_is_there():
    assert {"Tokens", "Credit", "assign_credit"} <= set(dir(trl_credit))


# What a reviewer found


def test_what_stands_outside_of_the_loss_may_not_be_finite(make_trainer, toy_loss):
    def divided(config, tokens):
        share = tokens.mask_t / tokens.mask_t.sum(-1, keepdim=True)  # 0 / 0 in a row without a loss token
        return Credit(None, tokens.advantages.unsqueeze(1) * share * tokens.mask_t.sum(-1, keepdim=True))

    t = toy()
    t["mask"][3] = 0
    for left, right in zip(
        run(make_trainer(credit=divided), toy_loss, t), run(make_trainer(), toy_loss, t), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-15)


def test_a_folder_may_have_an_at_sign(tmp_path):
    folder = tmp_path / "me@corp.com"
    folder.mkdir()
    (folder / "mine.py").write_text(FILE.read_text())
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", credit=f"{folder}/mine.py:half_decay")
    assert config.own_function("credit").__name__ == "half_decay"


def test_functions_stay_what_they_were_and_so_does_their_digest(tmp_path, monkeypatch):
    path, text = tmp_path / "changing.py", "def f(config, tokens):\n    return 1\n"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    settings = {"output_dir": str(tmp_path), "report_to": "none", "credit": "changing.py:f"}
    config = CreditConfig(**settings)
    digest = source_of(config.credit, what="credit").digest
    monkeypatch.chdir("/")
    path.unlink()
    assert config.own_function("credit")(None, None) == 1 and source_of(config.credit, what="credit").digest == digest
    path.write_text(text.replace("1", "2"))
    monkeypatch.chdir(tmp_path)
    again = CreditConfig(**settings)  # looks at the file anew
    assert again.own_function("credit")(None, None) == 2 and source_of(again.credit, what="credit").digest != digest


def test_names_of_methods_and_of_functions_in_files(tmp_path):
    class Own:
        def credit(self, config, tokens):
            return assign_credit(config, tokens)

    one = Own()
    assert name_of(one.credit) == name_of(one.credit)
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", credit=own("half_decay"))
    assert name_of(config.own_function("credit")) == own("half_decay")
    config.credit = one.credit
    with pytest.raises(ValueError, match="when the configuration is built"):
        config.own_function("credit")


def test_a_token_mask_sees_whole_batches(make_trainer):
    seen = []

    def every(old_logp_t, *, threshold, mask_t):
        seen.append(mask_t.shape[0])
        return mask_t

    make_trainer(
        token_mask=every, loss_type="grpo", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=1
    ).train()
    assert seen == [8]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"token_mask": lambda o, *, threshold, mask_t: 0.9 * mask_t}, "token_mask .* returned other values"),
        (
            {"credit": lambda config, t: Credit(None, t.advantages, mask=0.5 * t.mask_t)},
            "mask with other values than 0",
        ),
        ({"credit": own("half_decay"), "loss_type": "luspo"}, "luspo.*set loss_type"),
        (
            {"credit": own("half_decay"), "rollouts": "tree", "tree_rows": "packed", "loss_type": "dapo"},
            "set tree_rows='nodes'",
        ),
        ({"credit": own("weighted_kl"), "beta": 0.1, "loss_type": "grpo"}, "use_bias_correction_kl=False"),
    ],
    ids=["soft token mask", "soft mask", "luspo", "packed", "corrected KL"],
)
def test_more_that_is_refused(make_trainer, knobs, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(temperature=1.3, **knobs).train()


def test_metrics_may_not_come_and_go(make_trainer, toy_loss):
    calls = []

    def sometimes(config, tokens):
        credit = assign_credit(config, tokens)
        calls.append(1)
        return credit if len(calls) == 1 else replace(credit, log_weight=1.0 * credit.log_weight)

    trainer = make_trainer("s_trace", beta=0.0, credit=sometimes)
    run(trainer, toy_loss, toy())
    with pytest.raises(ValueError, match="its own or that of assign_credit"):
        run(trainer, toy_loss, toy())


def test_what_a_function_declares_is_heard_through_partials_and_methods(make_trainer, toy_loss):
    class Delegates(CreditTrainer):
        def credit(self, tokens):
            return super().credit(tokens)

    class Denies(CreditTrainer):
        def credit(self, tokens):
            return assign_credit(self.args, tokens)

        credit.carries_loss = False

    partial = functools.partial(FILE_MODULE.weighted_kl)
    assert make_trainer(credit=partial)._own_credit.carries_loss
    assert not make_trainer((CreditConfig, Denies), credit=partial)._own_credit.carries_loss
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "loss_type": "grpo"}
    plain, delegates = make_trainer(**settings), make_trainer((CreditConfig, Delegates), **settings)
    for left, right in zip(run(plain, toy_loss, toy()), run(delegates, toy_loss, toy()), strict=True):
        assert torch.equal(left, right)


def test_a_baseline_cannot_spoil_the_belief(make_trainer):
    def spoils(rewards, *, lengths, num_generations):
        centred = rewards - rewards.mean()
        rewards.zero_()
        return centred

    trainer = make_trainer("ha_dw", baseline=spoils, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["credit/difficulty_belief"] == pytest.approx(
        trainer.state.log_history[0]["reward"]
    )


def test_a_method_keeps_its_state_and_stands_on_the_card(make_trainer, tmp_path):
    class Counting(CreditTrainer):
        calls = 0

        def credit(self, tokens):
            """Counts its calls."""
            self.calls += 1
            return super().credit(tokens)

        def credit_state(self):
            return {"calls": self.calls} if self.calls else {}  # nothing yet in a new run, which resumes all the same

        def load_credit_state(self, state):
            self.calls = state["calls"]

    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    make_trainer((CreditConfig, Counting), **settings).train()
    resumed = make_trainer((CreditConfig, Counting), **settings | {"max_steps": 3})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.calls == 3
    with pytest.raises(ValueError, match="would lose.*credit"):
        make_trainer(**settings).train(resume_from_checkpoint=True)
    words = describe_credit(resumed.args, method=resumed.credit_method)["weight W"]
    assert "Counting.credit` of test_own_functions.py (SHA-256" in words and "Counts its calls." in words


def test_the_recipe_of_trls_sequence_level_is_taken_back(tmp_path):
    settings = {"importance_sampling_level": "sequence", "top_entropy_quantile": 0.5, "loss_type": "grpo"}
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", **settings)
    recipe = changed(config)
    assert CreditConfig(output_dir=str(tmp_path), report_to="none", **recipe).to_dict() == config.to_dict()
    ours = CreditConfig(output_dir=str(tmp_path), report_to="none", importance="sequence")
    assert "importance_sampling_level" not in changed(ours)
