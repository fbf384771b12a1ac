"""Advantages from rewards along responses: closed forms, and the bias of each form by enumeration of a toy."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_credit.credit import returns
from trl_credit.credit.returns import difference_advantages, returns_to_go, state_group_advantages, to_go_advantages


GROUP = 3
TURNS = 3
# the toy: before each of three turns the policy chooses one of two actions, and after the first two whether to stop
ACTIONS, STOP = (0, 1), (0, 1)
REWARD = [[0.3, 1.1], [-0.7, 0.4], [1.9, 0.2]]  # of action a in turn t


def toy_logits() -> torch.Tensor:
    """Parameters: a logit per action of each turn, and one for stopping after each of the first two."""
    return torch.tensor([0.2, -0.5, 0.7, 0.3, -0.4], dtype=torch.float64, requires_grad=True)


def trajectories(logits: torch.Tensor):
    """Every trajectory: log-probability of each turn, with the decision to go on or stop after it, and its rewards."""
    act = torch.nn.functional.logsigmoid(torch.stack([-logits[:3], logits[:3]], 1))
    stop = torch.nn.functional.logsigmoid(torch.stack([-logits[3:], logits[3:]], 1))
    for length in range(1, TURNS + 1):
        for actions in itertools.product(ACTIONS, repeat=length):
            logps = []
            for t, action in enumerate(actions):
                stopping = stop[t, int(t == length - 1)] if t < TURNS - 1 else logits.new_zeros(())
                logps.append(act[t, action] + stopping)
            yield torch.stack(logps), [REWARD[t][a] for t, a in enumerate(actions)], actions


def expected(advantages) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and total variance of the gradient estimate Σ_i Σ_t A_{i,t} ∇ log π / G, over all groups of three.

    `advantages(rewards (G, K), steps (G,))` gives (G, K).
    """
    logits = toy_logits()
    paths = list(trajectories(logits))
    probabilities = torch.stack([logps.sum().exp() for logps, _, _ in paths]).detach()
    assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-14)
    scores = torch.zeros(len(paths), TURNS, len(logits), dtype=torch.float64)
    for i, (logps, _, _) in enumerate(paths):
        for t, logp in enumerate(logps):
            scores[i, t] = torch.autograd.grad(logp, logits, retain_graph=True)[0]
    table = torch.zeros(len(paths), TURNS, dtype=torch.float64)
    for i, (_, rewards, _) in enumerate(paths):
        table[i, : len(rewards)] = torch.tensor(rewards, dtype=torch.float64)
    lengths = torch.tensor([len(rewards) for _, rewards, _ in paths])
    groups = torch.cartesian_prod(*[torch.arange(len(paths))] * GROUP)
    weight = probabilities[groups].prod(1)
    flat = groups.flatten()
    credit = advantages(table[flat], lengths[flat]).unflatten(0, (-1, GROUP))
    estimates = (credit.unsqueeze(-1) * scores[groups]).sum((1, 2)) / GROUP
    mean = (weight.unsqueeze(1) * estimates).sum(0)
    return mean, (weight * (estimates - mean).square().sum(-1)).sum()


def true_gradient() -> torch.Tensor:
    logits = toy_logits()
    value = sum(logps.sum().exp() * sum(rewards) for logps, rewards, _ in trajectories(logits))
    return torch.autograd.grad(value, logits)[0]


def to_go(baseline: str):
    def of(rewards, steps):
        return_k = returns_to_go(rewards, gamma=1.0, steps=steps)
        return to_go_advantages(return_k, baseline=baseline, num_generations=GROUP, steps=steps)

    return of


def outcome(rewards, steps):
    """The leave-one-out advantage of the whole return on every turn."""
    totals = rewards.sum(-1).view(-1, GROUP)
    centred = (totals - totals.mean(-1, keepdim=True)) * GROUP / (GROUP - 1)
    return centred.flatten().unsqueeze(1).expand_as(rewards)


@pytest.mark.parametrize(
    ("form", "variance"),
    [(to_go("response"), 0.240), (to_go("step"), 0.251), (outcome, 0.250)],
    ids="response step outcome".split(),
)
def test_forms_without_the_own_response_are_unbiased(form, variance):
    """The variances are those of docs/theory.md."""
    (mean, found), true = expected(form), true_gradient()
    assert (mean - true).norm() < 1e-12 * true.norm() and found.item() == pytest.approx(variance, abs=5e-4)


def test_equal_states_weigh_the_gradient_and_do_not_bend_it():
    """E[A_E + ω A_S] is the gradient, plus ω times each turn's own weighted by how often others are there.

    States are the turn numbers here, so the weight is the probability that one of two others reaches the turn.
    """
    omega = 0.7

    def of(rewards, steps):
        to_go_k = returns_to_go(rewards, gamma=1.0, steps=steps)
        states = torch.arange(TURNS).expand(len(rewards), -1)
        groups = {"states_k": states, "num_generations": GROUP, "steps": steps}
        return state_group_advantages(to_go_k, outcome=rewards.sum(-1), weight=omega, kind="loo", **groups)

    logits = toy_logits()
    reach = [0.0] * TURNS
    for logps, rewards, _ in trajectories(logits):
        for t in range(len(rewards)):
            reach[t] += logps.sum().exp().item()
    target = true_gradient()
    for logps, rewards, _ in trajectories(logits):
        for t, logp in enumerate(logps):
            weight = omega * (1 - (1 - reach[t]) ** (GROUP - 1))
            own = torch.autograd.grad(logp, logits, retain_graph=True)[0]
            target = target + logps.sum().exp().item() * weight * sum(rewards[t:]) * own
    assert torch.allclose(expected(of)[0], target, atol=1e-12, rtol=0)


# Closed forms on drawn tables

TABLES = st.integers(0, 10_000)


def drawn(seed: int, groups: int = 2, size: int = 3, most: int = 4):
    generator = torch.Generator().manual_seed(seed)
    rows = groups * size
    steps = torch.randint(1, most + 1, (rows,), generator=generator)
    rewards = torch.randn(rows, most, generator=generator, dtype=torch.float64)
    rewards[torch.arange(most) >= steps.unsqueeze(1)] = 0.0
    return rewards, steps, generator


@settings(deadline=None, max_examples=40)
@given(TABLES, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from(["response", "step"]), st.booleans())
def test_to_go_equals_loops(seed, gamma, baseline, has_unscored):
    rewards, steps, _ = drawn(seed)
    own = returns_to_go(rewards, gamma=gamma, steps=steps)
    if has_unscored:
        own[1] = torch.nan
    advantages = to_go_advantages(own, baseline=baseline, num_generations=3, steps=steps)
    for i in range(6):
        group = [j for j in range(i // 3 * 3, i // 3 * 3 + 3) if j != i and not (has_unscored and j == 1)]
        for k in range(4):
            if k >= steps[i] or (has_unscored and i == 1):
                assert advantages[i, k] == 0
                continue
            ret = {j: sum(gamma ** (m - k) * rewards[j, m].item() for m in range(k, steps[j])) for j in [i, *group]}
            whole = [sum(gamma**m * rewards[j, m].item() for m in range(steps[j])) for j in group]
            base = sum(whole) / len(whole)
            reached = [ret[j] for j in group if steps[j] > k]
            if baseline == "step" and reached:
                base = sum(reached) / len(reached)
            assert advantages[i, k].item() == pytest.approx(ret[i] - base, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(TABLES, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["mean", "std", "loo"]))
def test_state_groups_equal_loops(seed, weight, kind):
    """GiGPO's Eq. 3, 7 and 8 with the mean that has the own response, F = std or 1; and ours, without it."""

    def relative(x, everyone, others):
        if kind == "loo":
            return x - sum(others) / len(others) if others else 0.0
        n, mean = len(everyone), sum(everyone) / len(everyone)
        std = math.sqrt(sum((y - mean) ** 2 for y in everyone) / (n - 1)) if n > 1 else 0.0
        return (x - mean) / (std + 1e-6 if kind == "std" else 1.0)

    rewards, steps, generator = drawn(seed)
    states = torch.randint(0, 3, rewards.shape, generator=generator)
    own = returns_to_go(rewards, gamma=0.9, steps=steps)
    groups = {"states_k": states, "num_generations": 3, "steps": steps}
    advantages = state_group_advantages(own, outcome=rewards.sum(-1), weight=weight, kind=kind, **groups)
    shared = returns.shared_states(states, num_generations=3, steps=steps)
    for i in range(6):
        group = range(i // 3 * 3, i // 3 * 3 + 3)
        totals = {j: rewards[j].sum().item() for j in group}
        episode = relative(totals[i], [*totals.values()], [total for j, total in totals.items() if j != i])
        for k in range(4):
            there = [(j, m) for j in group for m in range(steps[j]) if states[j, m] == states[i, k]]
            same, others = ([own[j, m].item() for j, m in there if j != i or with_own] for with_own in (True, False))
            target = episode + weight * relative(own[i, k].item(), same, others) if k < steps[i] else 0.0
            # a std of nearly equal returns is a small divisor
            assert advantages[i, k].item() == pytest.approx(target, abs=1e-9 if kind == "std" else 1e-12)
            assert shared[i, k].item() == (k < steps[i].item() and bool(others))


@pytest.mark.parametrize(
    ("values", "first", "steps", "expected"),
    [
        # scores that are the running sums of rewards: credit is the reward itself, and the baseline sits on step 0
        ([[1, 3, 7], [3, 3, 3], [5, 6, 6]], [math.nan] * 3, [3, 1, 2], [[1 - 4, 2, 4], [0, 0, 0], [5 - 2, 1, 0]]),
        # a known score of the prompt replaces the baseline
        ([[0.5, 1], [0.25, 0]], [0.25, math.nan], [2, 1], [[0.25, 0.5], [0.25 - 0.5, 0]]),
        # a response without scored states has no credit and is no baseline
        ([[0.5], [9], [0.25]], [math.nan] * 3, [1, 0, 1], [[0.25], [0], [-0.25]]),
    ],
)
def test_differences_of_scores_of_states(values, first, steps, expected):
    values, first = (torch.tensor(x, dtype=torch.float64) for x in (values, first))
    settings = {"num_generations": len(steps), "steps": torch.tensor(steps)}
    assert difference_advantages(values, first=first, **settings).tolist() == expected


def test_equal_rewards_leave_no_rounding_behind():
    rewards, steps = torch.full((4, 2), 0.1, dtype=torch.float64), torch.full((4,), 2)
    own = returns_to_go(rewards, gamma=1.0, steps=steps)
    states = torch.zeros(4, 2, dtype=torch.long)
    groups = {"num_generations": 4, "steps": steps}
    assert not to_go_advantages(own, baseline="step", **groups).any()
    assert not to_go_advantages(own, baseline="response", **groups)[:, 0].any()
    for kind in ("mean", "std", "loo"):
        of_kind = {"states_k": states[:, :1], "kind": kind, **groups}
        assert not state_group_advantages(own[:, :1], outcome=own[:, 0], **of_kind).any()
    none = torch.full((4,), torch.nan)
    assert not difference_advantages(rewards, first=none, **groups).any()
