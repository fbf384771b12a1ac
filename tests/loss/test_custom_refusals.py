"""Custom functions that break their contract, and settings that do not go with them, are refused with the fix."""

from dataclasses import replace

import pytest
import torch
from custom_functions import FILE, config, custom
from toy_loss import run, toy

from trl_credit import Credit, assign_credit


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
    with pytest.raises(ValueError, match=f"credit function 'function@.*{message}.*your_own_algorithm"):
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
        ({"selector": lambda entropy_t, *, rate, mask_t: entropy_t[0]}, "selector .* zeros and ones.*returned shape"),
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
