"""Credit from a teacher: closed forms, bounds, and the presets through TRL's real loss."""

import math

import pytest
import torch
from toy_loss import check_loss, check_same, run, surrogate, toy

from trl_credit.credit.teacher import evidence_factor, position_weight, teacher_gap


nan = math.nan


def with_teacher(seed=0):
    """Toy tensors, and a teacher that has no context for row 2."""
    t = toy(seed)
    teacher_t = t["old"] + 0.5 * torch.randn(t["old"].shape, generator=torch.Generator().manual_seed(9)).double()
    teacher_t[2] = nan
    return t, teacher_t


def gap(t, teacher_t, student):
    return (teacher_t - t[student].detach()).nan_to_num(nan=0.0)


def mean_of_rows(t, gain_t):
    return -((gain_t * t["mask"]).sum(-1) / t["mask"].sum(-1)).mean()


def test_factor_and_position_weight_by_hand():
    """Golden numbers: d = (0.1, −1, 5), A = 2 and −2, μ = 0.5, ε = 0.2; |d| = 1, 3, 4."""
    gap_t = torch.tensor([[0.1, -1.0, 5.0]] * 2, dtype=torch.float64)
    up = [0.5 + 0.5 * math.exp(0.1), 0.5 + 0.5 * 0.8, 0.5 + 0.5 * 1.2]
    down = [0.5 + 0.5 * math.exp(-0.1), 0.5 + 0.5 * 1.2, 0.5 + 0.5 * 0.8]
    a = torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    factor_t = evidence_factor(gap_t, advantage_t=a, share=0.5, clip=0.2)
    torch.testing.assert_close(factor_t, torch.tensor([up, down], dtype=torch.float64), rtol=1e-12, atol=0)
    gap_t, mask_t = torch.tensor([[1.0, -3.0, 9.0, 4.0]]), torch.tensor([[1, 1, 0, 1]])
    weight_t = position_weight(gap_t, gamma=0.5, mask_t=mask_t)
    torch.testing.assert_close(weight_t[0, [0, 1, 3]], torch.tensor([1.5, 1 + 0.5 * 7 / 8, 1 + 0.5 * 4 / 8]))
    assert position_weight(torch.zeros(1, 3), gamma=0.5, mask_t=torch.ones(1, 3)).tolist() == [[1.5] * 3]


def test_a_factor_keeps_the_sign_and_its_bounds():
    generator = torch.Generator().manual_seed(0)
    gap_t = 100 * torch.randn(64, 32, generator=generator)
    gap_t[3] = nan
    a = torch.randn(64, 1, generator=generator)
    a[5] = 0.0
    for share in (0.0, 0.5, 1.0):
        factor_t = evidence_factor(gap_t, advantage_t=a, share=share, clip=0.2)
        assert (factor_t >= 1 - share * 0.2 - 1e-6).all() and (factor_t <= 1 + share * 0.2 + 1e-6).all()
        assert torch.equal((a * factor_t).sign(), a.sign().expand_as(factor_t)) and (factor_t[3] == 1).all()
    assert torch.equal(evidence_factor(gap_t, advantage_t=a, share=0.0, clip=0.2), torch.ones_like(gap_t))


def test_a_gap_is_unknown_without_a_context_and_0_at_masked_tokens():
    logps, mask_t = torch.full((2, 2), -1.0, requires_grad=True), torch.tensor([[1, 0], [1, 1]])
    teacher_t = torch.tensor([[-0.5, nan], [nan, nan]])
    gap_t = teacher_gap(teacher_t, logp_t=logps, mask_t=mask_t)
    assert gap_t[0].tolist() == [0.5, 0.0] and gap_t[1].isnan().all() and not gap_t.requires_grad


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_opd_in_closed_form(make_trainer, toy_loss, outcome, gamma):
    t, teacher_t = with_teacher()
    d = gap(t, teacher_t, "old")
    if gamma:
        size = d.abs() * t["mask"]
        total = size.sum(-1, keepdim=True).clamp(min=1e-300)
        d = d * (1 + gamma * (1 - torch.stack([size[:, :k].sum(-1) for k in range(7)], -1) / total))
    a = t["advantages"].unsqueeze(1) * outcome + 0.3 * d
    knobs = {"distillation_coef": 0.3, "distillation_outcome": outcome, "distillation_position": gamma}
    result = run(make_trainer("opd", **knobs), toy_loss, t, teacher_per_token_logps=teacher_t)
    check_loss(result, mean_of_rows(t, surrogate(t, a)), t["logps"])


def test_opd_without_outcome_has_the_gradient_of_the_reverse_kl_estimate(make_trainer, toy_loss):
    """On-policy: ∇ Σ −d_t ℓ_t, with d held fixed."""
    t, teacher_t = with_teacher()
    t["old"] = t["logps"].detach().clone()
    trainer = make_trainer("opd", distillation_outcome=False)
    _, gradient = run(trainer, toy_loss, t, teacher_per_token_logps=teacher_t)
    kl = mean_of_rows(t, gap(t, teacher_t, "logps") * t["logps"])
    torch.testing.assert_close(gradient, torch.autograd.grad(kl, t["logps"])[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("student", ["old", "current"])
@pytest.mark.parametrize("negative_only", [False, True])
@pytest.mark.parametrize("step", [0, 15, 60, 100])
def test_rlsd_in_closed_form(make_trainer, toy_loss, student, negative_only, step):
    t, teacher_t = with_teacher()
    a = t["advantages"].unsqueeze(1)
    evidence = (a.sign() * gap(t, teacher_t, "logps" if student == "current" else "old")).exp().clamp(0.8, 1.2)
    share = 0.5 * max(0.0, 1 - step / 60)
    factor_t = torch.where(teacher_t.isnan(), 1.0, 1 - share + share * evidence)
    factor_t = torch.where(a > 0, 1.0, factor_t) if negative_only else factor_t
    trainer = make_trainer("rlsd", distillation_student=student, evidence_negative_only=negative_only)
    trainer.state.global_step = step
    result = run(trainer, toy_loss, t, teacher_per_token_logps=teacher_t)
    check_loss(result, mean_of_rows(t, surrogate(t, a * factor_t, high=1.28)), t["logps"])
    if step >= 60:  # GRPO to the last bit
        check_same(result, run(make_trainer("grpo", epsilon_high=0.28), toy_loss, t))


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("most", [2.0, 1.05])
def test_sdpo_in_closed_form(make_trainer, toy_loss, weight, most):
    t, teacher_t = with_teacher()
    ratio = (t["logps"] - t["old"]).exp().detach().clamp(max=most)
    assert most == 2.0 or (ratio == most).any()
    gain_t = weight * ratio * gap(t, teacher_t, "logps") * t["logps"]
    gain_t = gain_t + (1 - weight) * surrogate(t, t["advantages"].unsqueeze(1))
    trainer = make_trainer("sdpo", distillation_weight=weight, distillation_ratio_max=most)
    result = run(trainer, toy_loss, t, teacher_per_token_logps=teacher_t)
    check_loss(result, mean_of_rows(t, gain_t), t["logps"])


def test_a_trace_and_a_difficulty_weight_compose(make_trainer, toy_loss):
    """The W of S-trace stays, and the factor multiplies the advantage that the loss would have used."""
    t, teacher_t = with_teacher()
    knobs = {"importance": "eligible", "selector": "entropy", "selective_rate": 0.5, "evidence_steps": None}
    a = t["advantages"].unsqueeze(1)
    factor_t = evidence_factor(teacher_t - t["logps"].detach(), advantage_t=a, share=0.5, clip=0.2)
    plain = {**t, "advantages": a * factor_t}
    own = {"importance": "eligible", "selector": "entropy", "selective_rate": 0.5, "epsilon_high": 0.28}
    left = run(make_trainer("rlsd", **knobs), toy_loss, t, teacher_per_token_logps=teacher_t)
    check_same(left, run(make_trainer("grpo", **own), toy_loss, plain))
