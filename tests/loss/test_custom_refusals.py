"""Custom functions that break their contract, and settings that do not go with them, are refused with the fix."""

from dataclasses import fields, replace

import pytest
import torch
from custom_functions import FILE, config, custom
from toy_loss import check_same, run, toy
from weight_helpers import same_weights

from trl_credit import Credit, Tokens, assign_credit
from trl_credit.credit.tokens import wide
from trl_credit.loss.contract import LOOK_AGAIN, PATIENCE
from trl_credit.support.functions import FunctionRaised


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda t: {"log_weight": t.logp_t[:, :1]}, r"log_weight of shape \(4, 1\): return one of shape \(4, 7\)"),
        (lambda t: {"log_weight": torch.ones_like(t.old_logp_t)}, "log_weight without a graph"),
        (lambda t: {"log_weight": t.logp_t * NAN}, "log_weight with NaN or infinity at loss tokens"),
        (lambda t: {"advantage": t.old_logp_t[0]}, r"advantage of shape \(7,\): return one of shape \(4,\) or"),
        (lambda t: {"advantage": t.mask_t.long()}, "advantage of type torch.int64: return a floating tensor"),
        (lambda t: {"advantage": t.logp_t * 1.0}, "advantage with a graph.*carries_loss = True"),
        (lambda t: {"advantage": t.advantages * INF}, "advantage with NaN or infinity"),
        (lambda t: {"advantage": [1.0]}, "advantage as a list: return a tensor"),
        (lambda t: {"mask": t.mask_t[:1]}, r"mask of shape \(1, 7\)"),
        (lambda t: {"mask": 0.5 * t.mask_t}, "mask with values other than 0"),
        (lambda t: {"selected": t.old_logp_t[0]}, r"selected of shape \(7,\)"),
        (lambda t: None, r"returned a tuple: return trl_credit.Credit\(log_weight"),
        ("loss", "carries_loss and returned a log_weight other than 0"),
    ],
)
def test_a_wrong_result_is_refused_in_the_first_step(make_trainer, toy_loss, parts, message):
    def function(config, tokens):
        if parts == "loss":
            return Credit(tokens.logp_t * 1.0, tokens.logp_t * 1.0)
        changed = parts(tokens)
        return (None, tokens.advantages) if changed is None else replace(assign_credit(config, tokens), **changed)

    function.carries_loss = parts == "loss"
    trainer = make_trainer("base", credit=function)
    with pytest.raises(ValueError, match=f"credit function 'function@.*{message}.*credit_contract"):
        run(trainer, toy_loss, toy())


WEIGHT, LOSS = "half_decay", "weighted_kl"


@pytest.mark.parametrize(
    ("function", "knobs", "fix"),
    [
        *(
            (function, {"loss_type": x}, "set loss_type to 'dapo'")
            for function in (WEIGHT, LOSS)
            for x in ("cispo", "vespo", "sapo")
        ),
        (WEIGHT, {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl=False"),
        (LOSS, {"loss_type": "grpo", "beta": 0.1}, "use_bias_correction_kl=False"),
        (WEIGHT, {"loss_type": "grpo", "importance": "sequence"}, "importance='token'"),
        (WEIGHT, {"loss_type": "luspo"}, "luspo.*set loss_type"),
        (WEIGHT, {"rollouts": "tree", "tree_rows": "packed", "loss_type": "dapo"}, "set tree_rows='nodes'"),
    ],
)
def test_a_weight_or_a_loss_is_refused_where_it_would_be_lost(make_trainer, toy_loss, function, knobs, fix):
    trainer = make_trainer("base", credit=custom(function), **knobs)
    what = "a log_weight" if function == WEIGHT else "a custom loss"
    with pytest.raises(ValueError, match=f"{function}.* returned {what} .*{fix}"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize("part", ["mask", "log_weight"])
def test_the_parts_of_a_credit_may_not_change(make_trainer, toy_loss, part):
    calls = []

    def changes(config, tokens):
        credit = assign_credit(config, tokens)
        calls.append(1)
        changed = {"mask": tokens.mask_t, "log_weight": 1.0 * credit.log_weight}
        return credit if len(calls) == 1 else replace(credit, **{part: changed[part]})

    trainer = make_trainer("s_trace", beta=0.0, credit=changes)
    run(trainer, toy_loss, toy())
    with pytest.raises(ValueError, match="other parts of a Credit .*its own or that of assign_credit"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"credit": "my_credit"}, ".*credit must be .*package.module.function"),
        ({"credit": "nowhere.py:f"}, "there is no file 'nowhere.py'"),
        ({"credit": f"{FILE}:nothing"}, "'nothing' is not a function there"),
        ({"credit": "trl_credit.nowhere.f"}, "No module named"),
        (
            {"credit": custom("half_decay"), "policy_loss": "policy_iteration", "beta": 0.1},
            "both replace the credit function",
        ),
        ({"segmentation": custom("every_third")}, "set rollouts='chain'"),
        ({"selector": custom("same_selector")}, "importance='eligible'"),
        ({"token_mask": custom("same_mask"), "importance": "sequence"}, "importance='sequence_token'"),
        ({"baseline": custom("same_baseline"), "rollouts": "chain"}, "Set baseline='group'"),
    ],
)
def test_settings_are_refused_when_the_configuration_is_built(tmp_path, knobs, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"selector": lambda entropy_t, *, rate, mask_t: entropy_t[0]},
            "selector .* zeros and ones.*returned torch.float32 of shape",
        ),
        ({"selector": lambda entropy_t, *, rate, mask_t: entropy_t}, "selector .* returned other values"),
        ({"token_mask": lambda old, *, threshold, mask_t: None}, "token_mask .* it returned NoneType"),
        ({"token_mask": lambda old, *, threshold, mask_t: 0.9 * mask_t}, "token_mask .* returned other values"),
        (
            {"baseline": lambda r, *, lengths, num_generations: r[:1]},
            r"baseline.*shape \(8,\).*returned .*shape \(1,\)",
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


def zero_weight(config, tokens):
    return Credit(0.0 * tokens.logp_t, tokens.advantages)


def detached_weight(config, tokens):
    return Credit((tokens.logp_t - tokens.old_logp_t).detach() + 0.0 * tokens.logp_t, tokens.advantages)


def constant_loss(config, tokens):
    return Credit(None, wide(tokens.advantages) + 0.0 * tokens.logp_t)


constant_loss.carries_loss = True


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("function", [zero_weight, detached_weight, constant_loss])
def test_a_weight_without_a_gradient_stops_the_run(make_trainer, function, beta):
    plain_kl = {"use_bias_correction_kl": False} if beta else {}
    trainer = make_trainer(credit=function, beta=beta, max_steps=9, **plain_kl)
    with pytest.raises(ValueError, match=f"{function.__name__}.* whose gradient is 0.*in 5 micro-batches"):
        trainer.train()
    assert trainer.state.global_step == 4


def test_micro_batches_without_an_advantage_do_not_count(make_trainer, toy_loss):
    """A function that trains on positive advantages alone may give none to several micro-batches."""
    trainer = make_trainer("base", credit=lambda config, t: Credit(t.logp_t - t.old_logp_t, t.advantages.clamp(min=0)))
    trainer.model.train()
    t = toy()
    for _ in range(PATIENCE + 1):
        run(trainer, toy_loss, {**t, "advantages": -t["advantages"].abs()})
    assert run(trainer, toy_loss, t)[1].any()


@pytest.mark.parametrize("name", [f.name for f in fields(Tokens) if f.name not in ("seed", "hidden_t", "is_training")])
def test_what_a_function_writes_into_its_tokens_stays_there(make_trainer, toy_loss, name):
    """In its first call it is refused, in later ones it changes nothing; past autograd's version counter too."""
    calls = []

    def writes(config, tokens):
        found = assign_credit(config, tokens)
        found = replace(found, advantage=found.advantage.clone())
        calls.append(1)
        if len(calls) != 2:
            getattr(tokens, name).data.add_(1)
        return found

    writes.by_row = True  # so that it is called once
    trainer, plain = make_trainer("s_trace", credit=writes), make_trainer("s_trace")
    t, other = toy(), toy()
    t["sampling"], other["sampling"] = t["old"], other["old"].clone()
    t["reference"], other["reference"] = t["entropies"].clone(), other["entropies"].clone()
    t["statistics"], other["statistics"] = t["entropies"].clone(), other["entropies"].clone()

    def ran(trainer, t):
        more = {"ref_entropies": t["reference"], "batch_statistics": t["statistics"]}
        return run(trainer, toy_loss, t, sampling_per_token_logps=t["sampling"], **more)

    trainer.model.train(), plain.model.train()
    with pytest.raises(ValueError, match=r"writes into tokens\.\w+: make a new tensor"):
        ran(trainer, t)
    for _ in range(3):
        check_same(ran(trainer, t), ran(plain, other))
    assert len(calls) == 4 and all(torch.equal(t[key], other[key]) for key in t)


def test_a_weight_that_loses_its_gradient_later_stops_the_run(make_trainer, toy_loss):
    calls = []

    def fades(config, tokens):
        calls.append(1)
        return Credit((1.0 if len(calls) == 1 else 0.0) * (tokens.logp_t - tokens.old_logp_t), tokens.advantages)

    fades.by_row = True
    trainer = make_trainer("base", credit=fades)
    trainer.model.train()
    with pytest.raises(ValueError, match="whose gradient is 0"):
        for _ in range(LOOK_AGAIN + PATIENCE + 1):
            run(trainer, toy_loss, toy())
    assert len(calls) == LOOK_AGAIN + PATIENCE + 1


LATER = """
from trl_credit import Credit, assign_credit

calls = 0

def raises(config, tokens):
    global calls
    calls += 1
    if calls > 1:
        raise KeyError("no such thing")
    return assign_credit(config, tokens)

def misspelled(config, tokens):
    return assign_credit(confg, tokens)

def selector(entropy_t, *, rate, mask_t):
    return mask

class Mine:
    def __call__(self, config, tokens):
        return assign_credit(config, tokens)
"""


@pytest.mark.parametrize(
    ("knob", "name", "message"),
    [
        ("credit", "raises", r"raised KeyError: 'no such thing', in line 10 of mine.py\.$"),
        ("credit", "misspelled", r"raised NameError: name 'confg' is not defined.*, in line 14 of mine.py\.$"),
        ("selector", "selector", r"raised NameError: name 'mask' is not defined.*, in line 17 of mine.py\.$"),
    ],
)
def test_an_error_of_a_function_is_one_line_with_its_place(make_trainer, tmp_path, knob, name, message):
    (tmp_path / "mine.py").write_text(LATER)
    trainer = make_trainer("s_trace", max_steps=4, **{knob: f"{tmp_path}/mine.py:{name}"})
    with pytest.raises(FunctionRaised, match=f"^{knob} .*{message}") as raised:
        trainer.train()
    assert "\n" not in str(raised.value)


def test_a_class_is_no_function(tmp_path):
    (tmp_path / "mine.py").write_text(LATER)
    with pytest.raises(ValueError, match="mine.py:Mine' is a class without a method credit: name a function"):
        config(tmp_path, credit=f"{tmp_path}/mine.py:Mine")
    scope: dict = {}
    exec(LATER, scope)
    with pytest.raises(ValueError, match="is a class"):
        config(tmp_path, credit=scope["Mine"])
    assert config(tmp_path, credit=scope["Mine"]()).custom_function("credit") is not None


def centred(config, tokens):
    return Credit(None, wide(tokens.advantages) - tokens.advantages.mean())


@pytest.mark.parametrize("by_row", [None, False, True])
def test_credit_that_depends_on_the_cut_is_refused_unless_it_is_declared(trained, by_row):
    def credit(config, tokens):
        return centred(config, tokens)

    credit.by_row = by_row
    if by_row is None:
        fix = "compare rows in the method `statistics`, which sees the whole batch, or declare by_row = False"
        with pytest.raises(ValueError, match=f"gives a row other credit beside other rows.*: {fix}"):
            trained(credit=credit)
    else:
        trained(credit=credit)


def test_random_credit_is_not_compared_by_cut_and_draws_as_before(trained):
    def by_torch(config, tokens):
        return Credit(None, wide(tokens.advantages) * torch.rand_like(tokens.old_logp_t))

    def by_seed(config, tokens):
        drawn = torch.rand(tokens.mask_t.shape, generator=torch.Generator().manual_seed(tokens.seed))
        return Credit(None, wide(tokens.advantages) * drawn)

    trained(credit=by_seed)
    left = trained(credit=by_torch)
    by_torch.by_row = True  # without the calls that compare
    assert same_weights(left, trained(credit=by_torch))
