"""The theorems of benchmarks/theorems.py: as printed, by hand, and by simulation with the package's own functions."""

import math

import pytest
import torch
from theorems import (
    group_bias,
    group_mean,
    mixed_group_probability,
    overestimate_probability,
    reweighted_bias,
    trace_variance,
)

from trl_credit.credit.advantages import group_advantage, td_upper_bound
from trl_credit.credit.difficulty import difficulty_weight, group_accuracy


def tensor64(values):
    return torch.tensor(values, dtype=torch.float64)


def mixed_group_means(p, num_generations, n_groups, seed):
    """p̂ of simulated groups that hold both a right and a wrong response."""
    generator = torch.Generator().manual_seed(seed)
    rewards = (torch.rand(n_groups * num_generations, generator=generator) < p).double()
    p_hat = group_accuracy(rewards, num_generations=num_generations, reward_range=(0.0, 1.0))
    return p_hat[(p_hat > 0) & (p_hat < 1)]


class TestGroupBias:
    @pytest.mark.parametrize(
        ("num_generations", "expected"),
        [(8, [0.098553, 0.075583, 0.0278]), (4, [0.219526, 0.190576, 0.112069]), (2, [0.45, 0.4, 0.25])],
    )
    def test_published_values(self, num_generations, expected):
        p = tensor64([0.05, 0.1, 0.25])
        for x, sign in ((p, 1), (1 - p, -1)):
            bias = group_bias(x, num_generations=num_generations)
            torch.testing.assert_close(bias, sign * tensor64(expected), rtol=0, atol=1e-6)


class TestRolloutsPerPrompt:
    """What 8 and what 128 responses say of a prompt."""

    @pytest.mark.parametrize(
        ("p", "num_generations"), [(0.05, 8), (0.25, 8), (0.4, 8), (0.8, 4), (0.1, 2), (0.05, 128), (0.9, 128)]
    )
    def test_simulation(self, p, num_generations):
        n, group = 3_200_000 // num_generations, {"num_generations": num_generations}
        p_hat = mixed_group_means(p, num_generations, n_groups=n, seed=0)
        mean, std = (x.item() for x in group_mean(p, **group))
        assert p_hat.std().item() == pytest.approx(std, rel=0.03, abs=1e-9)
        standard_error = p_hat.std().item() / math.sqrt(len(p_hat))
        # with G = 2 the mean of a mixed group is always 1/2
        assert abs(p_hat.mean().item() - mean) <= 4 * standard_error + 1e-12
        # the bias is far outside that error: the simulation can tell a wrong formula from the right one
        assert abs(p_hat.mean().item() - p) > 20 * standard_error or num_generations == 128
        over = overestimate_probability(p, epsilon=0.1, **group).item()
        for share, expected, draws in (
            (len(p_hat) / n, mixed_group_probability(p, **group).item(), n),
            ((p_hat - p > 0.1).double().mean().item(), over, len(p_hat)),
        ):
            assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / draws) + 1e-9

    def test_the_numbers_of_the_page(self):
        """docs/theory_difficulty.md: a prompt that is solved one time in twenty."""
        for n, share, mean, std in ((8, 0.337, 0.149, 0.055), (128, 0.999, 0.050, 0.019)):
            group = {"num_generations": n}
            assert mixed_group_probability(0.05, **group).item() == pytest.approx(share, abs=5e-4)
            assert [x.item() for x in group_mean(0.05, **group)] == pytest.approx([mean, std], abs=5e-4)


class TestReweightedBias:
    """Theorem 3's inequality, Eq. 29, by summing over all groups."""

    @pytest.mark.parametrize("num_generations", [2, 8, 32])
    def test_without_a_weight_it_is_theorem_1(self, num_generations):
        p = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)
        bias = reweighted_bias(p, num_generations=num_generations, prior=0.3)
        torch.testing.assert_close(bias, -group_bias(p, num_generations=num_generations), rtol=0, atol=1e-13)

    @pytest.mark.parametrize("response", ["any", "right", "wrong"])
    @pytest.mark.parametrize(("p", "prior"), [(0.1, 0.5), (0.3, 0.5), (0.8, 0.6)])
    def test_simulation_with_the_advantages_and_weights_of_training(self, response, p, prior):
        generator = torch.Generator().manual_seed(4)
        rewards = (torch.rand(800_000, generator=generator) < p).double()
        p_hat = group_accuracy(rewards, num_generations=8, reward_range=(0.0, 1.0)).repeat_interleave(8)
        advantages = group_advantage(rewards, num_generations=8, scale=False)
        for scale in (None, 1.3):
            phi = 1.0 if scale is None else difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=scale)
            chosen = (p_hat > 0) & (p_hat < 1) & {"right": rewards == 1, "wrong": rewards == 0}.get(response, True)
            error = (advantages * phi - (rewards - p))[chosen].view(-1)
            expected = reweighted_bias(p, num_generations=8, prior=prior, scale=scale, response=response).item()
            # the responses of one group are not independent: at most eight times the variance
            assert abs(error.mean().item() - expected) < 4 * error.std().item() * math.sqrt(8 / len(error))

    def test_where_1_3_brings_the_mean_over_a_group_nearer(self):
        """docs/theory_difficulty.md: with a belief of 0.5 at both ends, which is as much as it loses in the middle."""
        p = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
        before = reweighted_bias(p, num_generations=8, prior=0.5).abs()
        for prior, size in ((0.3, 0.095), (0.5, 0.039), (0.7, 0.095)):
            after = reweighted_bias(p, num_generations=8, prior=prior, scale=1.3).abs()
            assert (before.mean().item(), after.mean().item()) == pytest.approx((0.040, size), abs=1e-3)
            if prior == 0.5:
                ends = (p < 0.16) | (p > 0.84)
                assert (after < before)[ends].all() and (after > before)[(p > 0.17) & (p < 0.83)].all()


class TestTraceVariance:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"decay": 0.5, "length": 3}, 0.25 + 0.0625 + 0.015625),
            ({"decay": 0.5, "length": 3, "variance": 4.0, "selective_rate": 0.2}, 0.2625),
            ({"decay": 0.0, "length": 9}, 0.0),
            ({"decay": 0.9, "length": 0}, 0.0),
            ({"decay": 1.0, "length": 9, "variance": 2.0}, 18.0),
            ({"decay": 0.9, "length": 2000}, 0.81 / 0.19),
            ({"decay": 0.9, "length": 9, "selective_rate": 0.0}, 0.0),
        ],
    )
    def test_by_hand_and_limits(self, arguments, expected):
        assert trace_variance(**arguments) == pytest.approx(expected, rel=1e-12, abs=1e-15)

    @pytest.mark.parametrize("mask", ["none", "every term", "whole trace"])
    def test_simulation(self, mask):
        decay, length, variance, n = 0.9, 30, 2.0, 200_000
        rho = 1.0 if mask == "none" else 0.2
        generator = torch.Generator().manual_seed(3)
        # uncorrelated but neither normal nor independent: the signs are, the sizes are shared by a whole row
        signs = torch.randint(0, 2, (n, length), generator=generator) * 2.0 - 1.0
        sizes = torch.randint(0, 2, (n, 1), generator=generator) * math.sqrt(2 * variance)
        draws = torch.rand(n, 1 if mask == "whole trace" else length, generator=generator)
        terms = signs * sizes * (draws < rho) * decay ** torch.arange(1, length + 1)
        trace = terms.double().sum(-1)
        expected = trace_variance(decay=decay, length=length, variance=variance, selective_rate=rho)
        squares = trace.square()
        standard_error = squares.std().item() / math.sqrt(n)
        assert abs(squares.mean().item() - expected) < 4 * standard_error
        # enough draws to tell ρ from ρ², and g^(2l) from g^l or from a sum that starts at l = 0
        assert standard_error < 0.02 * expected


class TestTdUpperBound:
    def test_against_the_product(self):
        eos_probs = torch.rand(3, 17, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 0.3
        expected = torch.zeros_like(eos_probs)
        for t in range(1, 17):
            expected[:, t] = 1 - (1 - expected[:, t - 1]) * (1 - eos_probs[:, t - 1])
        torch.testing.assert_close(td_upper_bound(eos_probs), expected, rtol=1e-13, atol=1e-15)

    def test_small_probabilities_are_not_lost_in_float32(self):
        # the float32 product of 1 − 1e-9 is 1
        bound = td_upper_bound(torch.full((1, 4097), 1e-9))
        assert bound[0, -1].item() == pytest.approx(4096e-9, rel=1e-3)

    def test_padding_and_types(self):
        eos_probs = tensor64([[0.1, 0.2, 0.3]])
        padded = torch.nn.functional.pad(eos_probs, (0, 4))
        assert torch.equal(td_upper_bound(padded)[:, :3], td_upper_bound(eos_probs))
        for shape in ((2, 0), (0, 3), (2, 1)):
            assert td_upper_bound(torch.full(shape, 0.5)).shape == shape
        assert td_upper_bound(torch.full((1, 3), 0.5, dtype=torch.bfloat16)).dtype == torch.float32
