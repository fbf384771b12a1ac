"""`trl_credit.testing.check_credit` passes functions that keep the contract, and names the property that fails."""

import pytest
import torch
from custom_functions import config, custom

from trl_credit import Credit, assign_credit
from trl_credit.testing import check_credit


@pytest.mark.parametrize("name", ["half_decay", "later_is_less", "weighted_kl"])
def test_check_credit_passes_custom_functions(name, tmp_path):
    args = config(tmp_path, credit=custom(name))
    done = check_credit(args.custom_function("credit"), config=args)
    assert done[0] == "form" and len(done) == 9


@pytest.mark.parametrize(
    "knobs", [{}, {"importance": "eligible", "selector": "entropy"}, {"importance": "lambda_trace"}]
)
def test_built_in_credit_passes(knobs, tmp_path):
    limit = {"trace_lambda": 0.0} if knobs else {}
    assert check_credit(assign_credit, config=config(tmp_path, **knobs), is_grpo_when=limit)[-1] == "GRPO"


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
