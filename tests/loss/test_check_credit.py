"""`trl_credit.testing.check_credit` passes functions that keep the contract, and names the property that fails."""

from dataclasses import dataclass

import pytest
import torch
from custom_functions import args_of, custom
from turn_helpers import TURN_FORMS

from trl_credit import ALGORITHMS, Credit, assign_credit
from trl_credit.testing import check_credit


@pytest.mark.parametrize("name", ["half_decay", "later_is_less", "weighted_kl"])
def test_check_credit_passes_custom_functions(name):
    args = args_of(credit=custom(name))
    done = check_credit(args.custom_function("credit"), config=args)
    assert done[1] == "form" and len(done) == 10


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_presets_keep_the_contract(algo):
    args = args_of(ALGORITHMS[algo][0], **{"cov_share": 0.3} if "cov" in algo else {})
    algorithm = args.algorithm()
    check_credit(assign_credit if algorithm is None else algorithm.credit.__self__, config=args)


@pytest.mark.parametrize(
    ("knobs", "limit"),
    [
        ({}, {}),
        ({"importance": "eligible", "selector": "entropy"}, {"trace_lambda": 0.0}),
        ({"importance": "lambda_trace", "trace_style": "both"}, {"importance": "token"}),
        ({"importance": "sequence"}, {"importance": "token"}),
        ({"loss_weight": "trace_past", "loss_weight_confidence": "tanh_grad"}, {"loss_weight": "none"}),
        ({"importance": "sequence_token"}, {"importance": "token"}),
        *((knobs | {"loss_type": "grpo"}, None) for knobs in TURN_FORMS.values()),
    ],
)
def test_built_in_credit_passes(knobs, limit):
    done = check_credit(assign_credit, config=args_of(**knobs), is_grpo_when=limit)
    assert done[-1] == ("batch statistics" if limit is None else "GRPO")


def first(tokens):
    """The advantage of each row's first token."""
    return tokens.advantages.reshape(len(tokens.mask_t), -1)[:, 0]


def zero_loss(config, tokens):
    return Credit(None, 0.0 * tokens.logp_t)


zero_loss.carries_loss = True


def over_rows(config, tokens):
    return Credit(None, tokens.advantages - tokens.advantages.mean())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda config, t: None, "form"),
        (lambda config, t: Credit(0.0 * t.logp_t, t.advantages), "learning"),
        (lambda config, t: Credit((t.logp_t - t.old_logp_t).detach() + 0.0 * t.logp_t, t.advantages), "learning"),
        (lambda config, t: Credit(t.logp_t - t.old_logp_t, 0.0 * t.advantages), "learning"),
        (lambda config, t: Credit(None, t.advantages, mask=torch.zeros_like(t.mask_t)), "learning"),
        (zero_loss, "learning"),
        (lambda config, t: Credit(None, t.advantages + 0 * (t.ref_logp_t * t.mask_t).sum(-1)), "inputs"),
        (lambda config, t: Credit(None, first(t) * (1 + (t.advantages.dim() == 2))), "inputs"),
        (lambda config, t: Credit(None, t.advantages.mul_(2.0).clone()), "inputs unchanged"),
        # a trace that runs over tool tokens and padding
        (lambda config, t: Credit((t.logp_t - t.logp_t.detach()).cumsum(-1), t.advantages), "masked tokens"),
        (lambda config, t: Credit(None, t.advantages / t.logp_t.size(1)), "padding"),
        (lambda config, t: Credit(None, first(t) * (1.0 + torch.arange(len(t.mask_t)))), "row order"),
        (over_rows, "micro-batches"),
        (lambda config, t: Credit(None, t.advantages + 0.01 * (t.advantages.dtype == torch.float32)), "float32"),
        (lambda config, t: Credit(None, 2 * t.advantages), "GRPO"),
    ],
)
def test_check_credit_says_which_property_fails(function, name):
    with pytest.raises(AssertionError, match=f"fails '{name}'"):
        check_credit(function, is_grpo_when={} if name == "GRPO" else None)


@dataclass
class Scaled:
    """Reads its setting in the statistics alone."""

    extra: float = 0.5

    def statistics(self, config, batch):
        return self.extra * batch.mask_t

    def credit(self, config, tokens):
        return Credit(None, tokens.advantages.reshape(len(tokens.mask_t), -1) * (1 + tokens.statistics_t))


def test_the_limit_of_grpo_has_statistics_of_its_own_settings():
    assert check_credit(Scaled, is_grpo_when={"extra": 0.0})[-1] == "GRPO"


def test_a_property_may_be_skipped():
    assert "micro-batches" not in check_credit(over_rows, skip=["micro-batches", "row order"])
    with pytest.raises(ValueError, match="no property 'x'"):
        check_credit(assign_credit, skip=["x"])
