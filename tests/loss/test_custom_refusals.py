"""Custom functions that break their contract, and settings that do not go with them, are refused with the fix."""

from dataclasses import replace

import pytest
import torch
from custom_functions import custom
from toy_loss import check_same, run, toy
from weight_helpers import same_weights

from trl_credit import Credit, assign_credit
from trl_credit.credit.tokens import wide
from trl_credit.loss.contract import PATIENCE, tensors_of
from trl_credit.support.functions import FunctionRaised


NAN = float("nan")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda t: {"log_weight": t.logp_t[:, :1]}, r"log_weight as .* shape \(4, 1\): return .* shape \(4, 7\)"),
        (lambda t: {"log_weight": torch.ones_like(t.old_logp_t)}, "log_weight without a graph"),
        (lambda t: {"log_weight": t.logp_t * NAN}, "log_weight with NaN"),
        (lambda t: {"advantage": t.mask_t.long()}, "advantage as torch.int64"),
        (lambda t: {"advantage": t.logp_t * 1.0}, "advantage with a graph"),
        (lambda t: {"advantage": t.advantages * NAN}, "advantage with NaN"),
        (lambda t: {"advantage": [1.0]}, "advantage as list"),
        (lambda t: {"mask": 0.5 * t.mask_t}, "mask with values other than 0"),
        (lambda t: {"selected": t.old_logp_t[0]}, r"selected as .* shape \(7,\)"),
        (lambda t: None, "a tuple"),
        ("loss", "a log_weight other than 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_result_is_refused_in_the_first_step(make_trainer, toy_loss, parts, message):
    def function(config, tokens):
        if parts == "loss":
            return Credit(tokens.logp_t * 1.0, tokens.logp_t * 1.0)
        changed = parts(tokens)
        return (None, tokens.advantages) if changed is None else replace(assign_credit(config, tokens), **changed)

    function.carries_loss = parts == "loss"
    trainer = make_trainer("base", credit=function)
    with pytest.raises(ValueError, match=f"credit function 'function@.*{message}"):
        run(trainer, toy_loss, toy())


WEIGHT, LOSS = "half_decay", "weighted_kl"


@pytest.mark.parametrize(
    ("function", "knobs", "fix"),
    [
        (WEIGHT, {"loss_type": "cispo"}, "Set loss_type to 'dapo'"),
        (LOSS, {"loss_type": "sapo"}, "Set loss_type to 'dapo'"),
        (WEIGHT, {"beta": 0.1, "use_bias_correction_kl": True}, "Set use_bias_correction_kl to False"),
        (LOSS, {"loss_type": "grpo", "beta": 0.1}, "Set use_bias_correction_kl to False"),
        (WEIGHT, {"loss_type": "grpo", "importance": "sequence"}, "Set importance to 'token'"),
        (LOSS, {"clip_form": "ratio"}, "Set clip_form to 'surrogate'"),
        (WEIGHT, {"loss_type": "luspo"}, "luspo.*Set loss_type"),
        (WEIGHT, {"rollouts": "tree", "tree_rows": "packed", "loss_type": "dapo"}, "Set tree_rows to 'nodes'"),
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
    with pytest.raises(ValueError, match="other parts of a Credit than in its first call"):
        run(trainer, toy_loss, toy())


@pytest.mark.parametrize(
    "knobs",
    [
        {"selector": lambda entropy_t, *, rate, mask_t: entropy_t[0], "importance": "eligible"},
        {"selector": lambda entropy_t, *, rate, mask_t: entropy_t, "importance": "eligible"},
        {"token_mask": lambda old, *, threshold, mask_t: None},
        {"token_mask": lambda old, *, threshold, mask_t: 0.9 * mask_t},
        {"baseline": lambda r, *, lengths, num_generations: r[:1]},
        {"baseline": lambda r, *, lengths, num_generations: r / 0},
        {"segmentation": lambda o, *, completion_ids, decode, mask_t: o, "rollouts": "chain", "loss_type": "dapo"},
    ],
    ids=["shape", "values", "no tensor", "no mask", "too few", "infinite", "no bool"],
)
def test_results_of_other_functions_are_checked(make_trainer, knobs):
    with pytest.raises(ValueError, match=f"^{next(iter(knobs))} .* must .* returned"):
        make_trainer(**knobs).train()


def zero_weight(config, tokens):
    return Credit(0.0 * tokens.logp_t, tokens.advantages)


def constant_loss(config, tokens):
    return Credit(None, wide(tokens.advantages) + 0.0 * tokens.logp_t)


constant_loss.carries_loss = True


@pytest.mark.parametrize(("function", "beta"), [(zero_weight, 0.1), (constant_loss, 0.0)])
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


def test_what_a_function_writes_into_its_tokens_stays_there(make_trainer, toy_loss):
    """The function writes past autograd's version counter."""

    def writes(config, tokens):
        credit = assign_credit(config, tokens)
        credit = replace(credit, advantage=credit.advantage.clone())
        for x in tensors_of(tokens).values():
            x.data.add_(1)
        return credit

    trainer, plain = make_trainer("s_trace", credit=writes), make_trainer("s_trace")
    t, other = toy(), toy()
    for batch in (t, other):
        batch |= {name: batch["entropies"].clone() for name in ("sampling", "reference", "statistics")}

    def trained_on(trainer, t):
        more = {"ref_entropies": t["reference"], "batch_statistics": t["statistics"]}
        return run(trainer, toy_loss, t, sampling_per_token_logps=t["sampling"], **more)

    for _ in range(2):
        check_same(trained_on(trainer, t), trained_on(plain, other))
    assert all(torch.equal(t[key], other[key]) for key in t)


LATER = """
from trl_credit import Credit, assign_credit

calls = 0

def raises(config, tokens):
    global calls
    calls += 1
    if calls > 1:
        raise KeyError("no such thing")
    return assign_credit(config, tokens)

def selector(entropy_t, *, rate, mask_t):
    return mask
"""


@pytest.mark.parametrize(
    ("knob", "name", "message"),
    [
        ("credit", "raises", r"raised KeyError: 'no such thing', in line 10 of mine.py\.$"),
        ("selector", "selector", r"raised NameError: name 'mask' is not defined.*, in line 14 of mine.py\.$"),
    ],
)
def test_an_error_of_a_function_is_one_line_with_its_place(make_trainer, tmp_path, knob, name, message):
    (tmp_path / "mine.py").write_text(LATER)
    trainer = make_trainer("s_trace", max_steps=4, **{knob: f"{tmp_path}/mine.py:{name}"})
    with pytest.raises(FunctionRaised, match=f"^{knob} .*{message}") as raised:
        trainer.train()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("by_row", [None, False, True])
def test_credit_that_depends_on_the_cut_is_refused_unless_it_is_declared(trained, by_row):
    def credit(config, tokens):
        return Credit(None, wide(tokens.advantages) - tokens.advantages.mean())

    credit.by_row = by_row
    if by_row is None:
        with pytest.raises(ValueError, match="gives a row other credit beside other rows.*declare by_row = False"):
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
