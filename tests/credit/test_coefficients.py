"""Credit of tokens in closed form against the gradient of TRL's own loss."""

import pytest
import torch
from coefficients import eligible_coefficient, lambda_trace_coefficient, lambda_weight_coefficient, sequence_coefficient
from conftest import toy_inputs

from trl_credit.credit.clipping import is_clipped
from trl_credit.credit.selection import select_high_entropy


CLIP = (0.8, 1.25)
DECAY = 0.7


def rows(off_policy: float = 0.4, length: int = 12) -> dict[str, torch.Tensor]:
    """Three rows, the second shorter and the third with a hole, at which nothing may be read."""
    g = torch.Generator().manual_seed(5)
    logp_t = -torch.rand(3, length, generator=g, dtype=torch.float64)
    mask_t = torch.ones(3, length, dtype=torch.long)
    mask_t[1, 9:] = 0
    mask_t[2, 4:6] = 0
    change_t = off_policy * torch.randn(3, length, generator=g, dtype=torch.float64)
    old_logp_t = torch.where(mask_t.bool(), logp_t - change_t, -50.0)
    return {"logp_t": logp_t, "old_logp_t": old_logp_t, "mask_t": mask_t}


ADVANTAGES = torch.tensor([0.5, -0.4, -1.5], dtype=torch.float64)


METHODS = {
    "GRPO": ("base", {}, lambda **x: eligible_coefficient(decay=0.0, **x)),
    "P-trace": ("p_trace", {}, lambda **x: eligible_coefficient(decay=DECAY, **x)),
    "S-trace": ("s_trace", {"selective_rate": 0.3}, lambda **x: eligible_coefficient(decay=DECAY, **x)),
    "ε-trace": ("grpo_lambda", {}, lambda **x: lambda_trace_coefficient(decay=DECAY, **x)),
    "ε-weight": ("base", {"loss_weight": "trace_future"}, lambda **x: lambda_weight_coefficient(decay=DECAY, **x)),
    "GSPO": ("gspo", {}, sequence_coefficient),
}


@pytest.mark.parametrize("off_policy", [0.0, 0.4])
@pytest.mark.parametrize("method", METHODS)
def test_coefficients_are_the_gradient_of_the_loss(make_trainer, toy_loss, method, off_policy):
    """Eq. 30a to 30c and GSPO's, times A, for tokens clipped and not, of rows with padding and a hole."""
    algo, knobs, coefficient = METHODS[method]
    traced = {} if method in ("GRPO", "GSPO") else {"trace_lambda": DECAY}
    plain = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.25}
    floor = {"advantage_floor": None} if algo == "grpo_lambda" else {}
    loss_type = {"loss_type": "grpo" if method == "GSPO" else "dr_grpo"}
    trainer = make_trainer(algo, **plain, **loss_type, **knobs, **traced, **floor)
    tensors = rows(off_policy)
    logps = tensors["logp_t"].clone().requires_grad_()
    entropies = torch.rand(logps.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask_t = tensors["mask_t"]
    inputs = toy_inputs(mask_t, advantages=ADVANTAGES, old_per_token_logps=tensors["old_logp_t"])
    loss = toy_loss(trainer, inputs, logps=logps, entropies=entropies)
    # Dr.GRPO divides by rows × completion length; the row mean, by rows × loss tokens
    per_row = mask_t.sum(-1, keepdim=True) if method == "GSPO" else trainer.args.max_completion_length
    gradient = -torch.autograd.grad(loss, logps)[0] * 3 * per_row
    selected = {}
    if method == "S-trace":
        selected = {"selected_t": select_high_entropy(entropies, rate=0.3, mask_t=mask_t)}
    coefficient_t = coefficient(advantages=ADVANTAGES, clip_range=CLIP, **tensors, **selected)
    torch.testing.assert_close(coefficient_t * ADVANTAGES.unsqueeze(1), gradient, rtol=1e-12, atol=1e-15)
    assert coefficient_t[~mask_t.bool()].eq(0).all() and coefficient_t.gt(0).any()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("surrogate", [[False, False, False, True], [True, False, False, False], [False] * 4]),
        ("ratio", [[False, False, False, True], [False, False, False, True], [False] * 4]),
    ],
)
def test_is_clipped_by_hand(form, expected):
    log_weight_t = torch.tensor([[0.79, 0.81, 1.24, 1.26]] * 3, dtype=torch.float64).log()
    advantage_t = torch.tensor([[1.0], [-1.0], [0.0]])
    assert is_clipped(log_weight_t, advantage_t=advantage_t, clip_range=CLIP, form=form).tolist() == expected
