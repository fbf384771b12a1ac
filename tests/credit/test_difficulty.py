"""HA-DW: the belief, its state, the accuracies that move it, and the weights that it gives."""

import json
import math

import pytest
import torch

from trl_credit.credit.difficulty import DifficultyBelief, batch_accuracy, difficulty_weight, group_accuracy
from trl_credit.loss.batch_metrics import difficulty_statistics


NAN, INF = math.nan, math.inf


def tensor64(values):
    return torch.tensor(values, dtype=torch.float64)


def beliefs(accuracies, **knobs):
    """C⁻ of every batch, and the belief after the last one."""
    belief, seen = DifficultyBelief(**knobs), []
    for y in accuracies:
        seen.append(belief.prior(y))
        belief.update(y)
    return [*seen, belief.belief]


# The belief


@pytest.mark.parametrize(
    ("window", "rate", "rate_min"),
    [(10, 3.0, 0.02), (2, 1.0, 0.05), (2, 1000.0, 0.0), (2, 1.0, 0.25), (1, 6.0, 0.5)],
)
def test_history_against_the_equations(window, rate, rate_min):
    accuracies = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    belief, expected = DifficultyBelief("history", window=window, rate=rate, rate_min=rate_min), []
    for t, y in enumerate(accuracies):
        step = belief.update(y)
        if t < window:
            expected.append(sum(accuracies[: t + 1]) / (t + 1))
            assert step is None
        else:
            own = rate * tensor64(expected[-window:]).std(correction=0).item()
            eta = min(max(own, rate_min), 1.0)
            expected.append((1 - eta) * expected[-1] + eta * y)
            assert step == (pytest.approx(eta), own < rate_min)
        assert belief.belief == pytest.approx(expected[-1], abs=1e-14)


def test_hard_is_always_the_mean_of_the_last_window_and_history_until_it_is_full():
    y = [0.1, 0.5, 0.9, 0.3, 1.0, 0.0]
    hard = beliefs(y, mode="hard", window=3)
    recent = [y[max(0, t - 2) : t + 1] for t in range(len(y))]
    assert hard[1:] == pytest.approx([sum(part) / len(part) for part in recent], abs=1e-15)
    history = beliefs(y, mode="history", window=3)
    assert history[:4] == hard[:4] and history[4] != hard[4]


@pytest.mark.parametrize("mode", ["history", "hard", "fixed"])
@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5, 15])
def test_resumed_equals_uninterrupted(mode, stop):
    accuracies = torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    whole, first, second = (DifficultyBelief(mode, window=4) for _ in range(3))
    for accuracy in accuracies[:stop]:
        whole.update(accuracy)
        first.update(accuracy)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert second.belief == whole.belief
    for accuracy in accuracies[stop:]:
        whole.update(accuracy)
        second.update(accuracy)
        assert second.belief == whole.belief


@pytest.mark.parametrize(("name", "value"), [("version", 3), ("version", 1), ("mode", "hard"), ("window", 4)])
def test_another_state_is_refused_and_changes_nothing(name, value):
    belief = DifficultyBelief("history", window=3)
    belief.update(0.5)
    before = belief.state_dict()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        belief.load_state_dict({**before, name: value})
    assert belief.state_dict() == before
    faster = DifficultyBelief("history", window=3, rate=9.0, rate_min=0.5)  # rates are for the next steps
    faster.load_state_dict(before)
    assert faster.state_dict() == before


# Accuracies


@pytest.mark.parametrize(
    ("rewards", "num_generations", "reward_range", "expected"),
    [
        ([1, 1, 0, 0, 0, 1, 0, 0], 4, (0, 1), [0.5, 0.25]),  # groups are consecutive
        ([-1, 1, 3, 3], 2, (-1, 3), [0.25, 1.0]),
        ([1, NAN, 0, NAN, NAN, NAN, NAN, 1, 1], 3, (0, 1), [0.5, NAN, 1.0]),  # not scored
        ([1 + 5e-7, 1.0, -5e-7, 0.0], 2, (0, 1), [1.0, 0.0]),  # rounding is forgiven and clamped
    ],
)
def test_accuracies_of_groups(rewards, num_generations, reward_range, expected):
    p_hat = group_accuracy(tensor64(rewards), num_generations=num_generations, reward_range=reward_range)
    assert p_hat.tolist() == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("rewards", "reward_range", "expected"),
    [
        ([1, NAN, NAN, 1, 0, 0], (0, 1), 0.5),  # every scored response once: the mean of group means is 2/3
        ([-1, 1, 1, 1], (-1, 1), 0.75),
        ([NAN, NAN], (0, 1), NAN),
        ([], (0, 1), NAN),
    ],
)
def test_the_accuracy_of_a_batch(rewards, reward_range, expected):
    accuracy = batch_accuracy(tensor64(rewards), reward_range=reward_range)
    assert accuracy == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.parametrize("value", [1.00001, -0.00001, 2.0, INF, -INF])
def test_a_reward_outside_the_range_is_refused_with_its_value_and_a_fix(value):
    rewards = tensor64([0.0, 1.0, value, NAN])
    message = rf"reward {value} is outside reward_range=\(0.0, 1.0\): set reward_range=\(lo, hi\)"
    with pytest.raises(ValueError, match=message):
        group_accuracy(rewards, num_generations=2, reward_range=(0.0, 1.0))
    with pytest.raises(ValueError, match=f"reward {value} .*reward_range"):
        batch_accuracy(rewards, reward_range=(0.0, 1.0))


# Weights


@pytest.mark.parametrize(
    ("advantage", "p_hat", "exponent"),
    [
        # easy prompt, p̂ − C⁻ = 0.3: a right response is damped, a wrong one amplified; hard prompt: the reverse
        *((1.0, 0.8, -0.3), (-1.0, 0.8, 0.3), (2.0, 0.25, 0.25), (-0.5, 0.25, -0.25)),
        *((0.0, 0.8, 0.0), (3.0, 0.5, 0.0)),
        # the bias of Theorem 1, too small an advantage of a right response on hard prompts, is undone in direction
        *((1.0, 0.125, 0.375), (1.0, 0.875, -0.375)),
        *((1.0, 1.0, -0.5), (-1.0, 1.0, 0.5)),
    ],
)
def test_weights_by_hand(advantage, p_hat, exponent):
    for prior in (0.0, 0.5, 1.0):
        phi = difficulty_weight(tensor64([advantage]), p_hat=tensor64([p_hat]), prior=prior, scale=1.3)
        moved = exponent + (prior - 0.5) * ((advantage > 0) - (advantage < 0))
        assert phi.item() == pytest.approx(1.3 * math.exp(moved), rel=1e-15)


def test_a_group_without_score_keeps_its_advantages_and_their_type():
    phi = difficulty_weight(torch.tensor([0.0, 1.0]), p_hat=tensor64([NAN, NAN]), prior=0.5, scale=1.3)
    assert phi.tolist() == [1.0, 1.0] and phi.dtype == torch.float32


# Statistics


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_weight_is_shown_by_the_sign_of_the_advantage(tokens):
    advantages = tensor64([2.0, -1.0, 0.0, 1.0, -3.0, -3.0, 1.0])
    p_hat = tensor64([0.2, 0.2, 0.2, 0.9, 0.9, 0.7, 0.5])
    if tokens > 1:  # padding has no advantage
        advantages = torch.stack([advantages, advantages, torch.zeros(7)], 1)
        p_hat = p_hat.unsqueeze(1).expand(7, 3)
    phi = difficulty_weight(advantages, p_hat=p_hat, prior=0.5, scale=1.0)
    sums = difficulty_statistics(phi, advantages, p_hat=p_hat, prior=0.5)
    assert {name: (total / count).item() for name, (total, count) in sums.items()} == pytest.approx(
        {
            "difficulty_weight/harder_positive": math.exp(0.3),
            "difficulty_weight/harder_negative": math.exp(-0.3),
            "difficulty_weight/easier_positive": math.exp(-0.4),
            "difficulty_weight/easier_negative": (math.exp(0.4) + math.exp(0.2)) / 2,
        }
    )
