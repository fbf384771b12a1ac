"""Clip-Cov and KL-Cov: loss and gradient in closed form through TRL's real loss, limits, what is refused."""

import pytest
import torch
from custom_functions import args_of
from toy_loss import check_loss, k3, run, surrogate, toy

from trl_credit import ClipCovConfig, KLCovConfig
from trl_credit.presets.clip_cov import ClipCov
from trl_credit.presets.kl_cov import KLCov
from trl_credit.testing import check_credit


BATCH, MICRO = "batch", "microbatch"
UNEQUAL = {"cov_range": [0.1, 2.0], "cov_share": 0.2}


def toy_covariance(t, logp):
    inside = t["mask"].bool()
    a = t["advantages"].unsqueeze(1).expand_as(logp)
    return torch.where(inside, (a - a[inside].mean()) * (logp - logp[inside].mean()), torch.nan)


def mean_over(t, loss_t):
    return (loss_t * t["mask"]).sum() / t["mask"].sum()


@pytest.mark.parametrize("scope", [BATCH, MICRO])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_clip_cov_in_closed_form(make_trainer, toy_loss, scope, beta):
    t = toy()
    trainer = make_trainer("clip_cov", beta=beta, cov_statistics=scope, cov_range=[0.1, 2.0], cov_share=1.0)
    ratio, a = (t["logps"] - t["old"]).exp(), t["advantages"].unsqueeze(1)
    cov = toy_covariance(t, t["old"] if scope == BATCH else t["logps"].detach())
    candidates = (cov > 0.1) & (cov < 2.0)
    if scope == MICRO:
        candidates &= ~((a > 0) & (ratio > 2.0))
    assert 4 < candidates.sum() < t["mask"].sum() - 4
    loss_t = torch.where(candidates, 0.0, -surrogate(t, a, low=0.0, high=2.0)) + beta * k3(
        t
    )  # the normaliser is unchanged
    check_loss(run(trainer, toy_loss, t), mean_over(t, loss_t), t["logps"])


@pytest.mark.parametrize("scope", [BATCH, MICRO])
def test_clip_cov_removes_so_many_tokens_at_random(make_trainer, toy_loss, scope):
    t = toy()
    trainer = make_trainer("clip_cov", cov_statistics=scope, **UNEQUAL)
    plain = make_trainer("dapo", epsilon=1.0, epsilon_high=1.0)
    full = run(plain, toy_loss, t)[1]
    cov = toy_covariance(t, t["old"] if scope == BATCH else t["logps"].detach())
    candidates = (cov > 0.1) & (cov < 2.0)
    seen = []
    for step in (0, 0, 1, 2):
        torch.manual_seed(step)
        global_state, trainer.state.global_step = torch.get_rng_state(), step
        gradient = run(trainer, toy_loss, t)[1]
        gone = (gradient != full) & (full != 0)
        assert gone.sum() == int(0.2 * t["mask"].sum()) and not gradient[gone].any() and candidates[gone].all()
        assert torch.equal(gradient[~gone], full[~gone])
        seen.append(gone)
        assert torch.equal(torch.get_rng_state(), global_state)  # which samples the responses
    assert torch.equal(seen[0], seen[1])
    assert (scope == BATCH) == (torch.equal(seen[0], seen[2]) and torch.equal(seen[0], seen[3]))


def test_clip_cov_in_a_micro_batch_chooses_among_what_ppo_does_not_clip(make_trainer, toy_loss):
    t = toy()
    t["old"] = torch.where(torch.arange(7) % 2 == 0, t["logps"].detach() - 1.0, t["logps"].detach())  # ρ = e or 1
    trainer = make_trainer("clip_cov", cov_statistics=MICRO, cov_share=1.0, cov_range=[-9.0, 9.0])
    ratio, a = (t["logps"] - t["old"]).exp(), t["advantages"].unsqueeze(1)
    clipped = (a > 0) & (ratio > 2.0)
    assert clipped.any()  # their constant 2A stays in the value, and all other tokens are gone
    loss_t = torch.where(clipped, -2.0 * a, 0.0 * t["logps"])
    check_loss(run(trainer, toy_loss, t), mean_over(t, loss_t), t["logps"])


@pytest.mark.parametrize("scope", [BATCH, MICRO])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_kl_cov_in_closed_form(make_trainer, toy_loss, scope, beta, penalty):
    t = toy()
    trainer = make_trainer("kl_cov", beta=beta, cov_statistics=scope, cov_share=0.2, cov_penalty=penalty)
    log_ratio, a = t["logps"] - t["old"], t["advantages"].unsqueeze(1)
    cov = toy_covariance(t, t["old"] if scope == BATCH else t["logps"].detach())
    count = int(0.2 * t["mask"].sum())
    limit = cov[t["mask"].bool()].sort(descending=True).values[count - 1]
    chosen = t["mask"].bool() & (cov >= limit)
    assert chosen.sum() == count == 4 and (log_ratio.exp() > 1.2).any()  # which PPO would clip
    loss_t = -a * log_ratio.exp() + penalty * chosen.double() * log_ratio.abs() + beta * k3(t)
    check_loss(run(trainer, toy_loss, t), mean_over(t, loss_t), t["logps"])


@pytest.mark.parametrize(
    ("config_class", "algorithm", "own"), [(ClipCovConfig, ClipCov, {"cov_range": [0, 9.0]}), (KLCovConfig, KLCov, {})]
)
def test_by_the_micro_batch_they_lack_some_of_the_contract(config_class, algorithm, own):
    with pytest.raises(AssertionError, match="'micro-batches'|'row order'|'padding'|'learning'"):  # as in the papers
        micro = args_of(config_class, cov_share=0.3, cov_statistics=MICRO, **own)
        check_credit(algorithm, config=micro)
