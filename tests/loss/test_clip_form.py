"""GRPO-λ's Algorithm 1, min(ρ, clip ρ)·A for both signs of A, through TRL's `_compute_loss`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_loss import check_loss, run, toy
from trace_helpers import trace_matrix

from trl_credit.credit.clipping import clip_ratio_alone
from trl_credit.credit.selection import select_high_entropy


RATIO = {"clip_form": "ratio"}
WEIGHTS = {
    "token": {},
    "sequence_token": {"importance": "sequence_token"},
    "p_trace": {"importance": "eligible"},
    "s_trace": {"importance": "eligible", "selector": "entropy", "selective_rate": 0.4},
    "recent": {"importance": "lambda_trace"},
    "both": {"importance": "lambda_trace", "trace_style": "both"},
    "loss_weight": {"loss_weight": "trace_past", "loss_weight_confidence": "sigmoid"},
    "loss_weight_grad": {"loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"},
}


def log_weight(t, name):
    """W by dense matrices, with its gradient."""
    m, logps = t["mask"].double(), t["logps"]
    change = (logps - t["old"]) * m
    own = (logps - logps.detach()) * m
    if name == "sequence_token":
        return (change.sum(-1, keepdim=True) / m.sum(-1, keepdim=True)).detach() + own
    if name in ("recent", "both"):
        return change @ trace_matrix(7, 0.9, name).T
    if name in ("p_trace", "s_trace"):
        z = m if name == "p_trace" else select_high_entropy(t["entropies"], rate=0.4, mask_t=t["mask"])
        earlier = trace_matrix(7, 0.9, "recent") - torch.eye(7, dtype=torch.float64)
        return change.detach() + own + (own * z) @ earlier.T
    return change


def literal_loss(t, name, *, low, high, loss_type, beta):
    """Token by token, as Algorithm 1 has it, with the KL on the plain log-probabilities."""
    w, mask, logps = log_weight(t, name), t["mask"], t["logps"]
    trace = t["mask"].double() @ trace_matrix(7, 0.9, "recent").T
    rows = []
    for b in range(4):
        losses = []
        for i in range(7):
            if not mask[b, i]:
                continue
            f = 1 + torch.sigmoid((logps[b, i] if name == "loss_weight_grad" else logps[b, i].detach()) - 1)
            c = trace[b, i].item() * f if name.startswith("loss_weight") else 1.0
            coef_1 = w[b, i].exp()
            coef_2 = coef_1.clamp(low, high)
            d = t["ref"][b, i] - logps[b, i]
            losses.append(-torch.minimum(coef_1, coef_2) * t["advantages"][b] * c + beta * (d.exp() - d - 1))
        rows.append(torch.stack(losses))
    if loss_type == "grpo":
        return torch.stack([row.mean() for row in rows]).mean()
    return torch.cat(rows).sum() / {"bnpo": mask.sum(), "dapo": mask.sum(), "dr_grpo": 4 * 8}[loss_type]


@pytest.mark.parametrize("loss_type, beta", [("grpo", 0.04), ("bnpo", 0.0), ("dr_grpo", 0.04), ("dapo", 0.0)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_loss_and_gradient_are_those_of_algorithm_1(make_trainer, toy_loss, name, loss_type, beta):
    plain_kl = {"use_bias_correction_kl": False} if beta else {}
    trainer = make_trainer("base", loss_type=loss_type, beta=beta, **plain_kl, **RATIO, **WEIGHTS[name])
    for low, high in ((0.2, 0.2), (0.05, 0.4), (0.3, 0.01), (0.0, 0.0)):
        t = toy()
        t["old"][1] += 0.5  # rows with A < 0, out of the range on either side
        t["old"][3] -= 0.5
        trainer.epsilon_low = trainer.args.epsilon = low  # TRL's loss reads the trainer's at every loss, ours the other
        trainer.epsilon_high, trainer.args.epsilon_high, trainer.args.clip_form = high, high, "ratio"
        expected = literal_loss(t, name, low=1 - low, high=1 + high, loss_type=loss_type, beta=beta)
        loss, grad = result = run(trainer, toy_loss, t)
        check_loss(result, expected, t["logps"], rtol=1e-12, atol=1e-13)
        # PPO's loss differs
        trainer.args.clip_form = "surrogate"
        surrogate = run(trainer, toy_loss, t)
        assert (surrogate[0] - loss).abs() > 1e-4 and (surrogate[1] - grad).abs().max() > 1e-4


def test_a_ratio_without_bound_is_bounded_for_either_sign(make_trainer, toy_loss):
    t = toy()
    t["old"][3, 2] = -1e4  # A < 0, and ρ = e^10000
    loss, grad = run(make_trainer("base", loss_type="grpo", beta=0.0), toy_loss, t)
    assert not loss.isfinite()
    loss, grad = run(make_trainer("base", loss_type="grpo", beta=0.0, **RATIO), toy_loss, t)
    assert loss.isfinite() and grad.isfinite().all() and grad[3, 2] == 0 and (grad[3] != 0).any()


def test_logged_clip_fractions(make_trainer, toy_loss):
    t, mask = toy(), toy()["mask"].bool()
    trainer = make_trainer("base", loss_type="grpo", beta=0.0, epsilon=0.1, **RATIO)
    run(trainer, toy_loss, t)
    above = ((t["logps"] - t["old"]).exp() > 1.1) & mask
    positive = t["advantages"].unsqueeze(1) > 0
    metrics = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    assert metrics["credit/clip_fraction"] == pytest.approx(above.sum().item() / mask.sum().item())
    assert metrics["clip_ratio/low_mean"] == 0.0  # nothing is clipped below
    assert metrics["clip_ratio/high_mean"] == pytest.approx((above & positive).sum().item() / mask.sum().item())
    assert (above & positive).sum() < above.sum()
    # |A| is that of the batch, and not what replaces it in the loss
    sizes = [metrics[f"credit/abs_advantage/quarter_{q + 1}"] for q in range(4)]
    plain = make_trainer("base", loss_type="grpo", beta=0.0)
    run(plain, toy_loss, t)
    assert sizes == [plain._metrics["eval"][f"credit/abs_advantage/quarter_{q + 1}"][-1] for q in range(4)]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), low=st.floats(0, 2), high=st.floats(0, 3))
def test_any_clip_range_and_any_ratio(seed, low, high):
    w, a_t = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w, clip_range = w.mul(2).requires_grad_(), (1 - low, 1 + high)
    new_w, new_a = clip_ratio_alone(w, a_t, clip_range=clip_range)
    ratio = new_w.exp()
    ppo = torch.minimum(ratio * new_a, ratio.clamp(*clip_range) * new_a)
    literal = torch.minimum(w.exp(), w.exp().clamp(*clip_range)) * a_t
    gradients = (torch.autograd.grad(x.sum(), w, retain_graph=True) for x in (ppo, literal))
    torch.testing.assert_close((ppo, *next(gradients)), (literal, *next(gradients)), rtol=1e-12, atol=1e-12)
    assert torch.equal(new_a.sign(), a_t.sign())  # which TRL's off-policy mask reads
