"""The theorems of benchmarks/theorems.py: as printed, by hand, and by simulation with the package's own functions."""

import math

import pytest
import torch
from theorems import (
    group_bias,
    group_mean,
    mean_misestimate_probability,
    mixed_group_probability,
    overestimate_probability,
    reducing_scales,
    reweighted_bias,
    smallest_misestimate_probability,
    sure_misestimate_range,
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


def exact_tail(p, num_generations, epsilon=0.0):
    """Theorem 2 term by term, as printed."""
    g = num_generations
    above = [math.comb(g, k) * p**k * (1 - p) ** (g - k) for k in range(1, g) if k / g > p + epsilon]
    return sum(above) / (1 - p**g - (1 - p) ** g)


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

    def test_limits_where_the_fraction_is_0_over_0(self):
        p = tensor64([0.0, 1e-14, 0.5, 1.0])
        expected = tensor64([1 / 8, 1 / 8, 0.0, -1 / 8])
        torch.testing.assert_close(group_bias(p, num_generations=8), expected, rtol=0, atol=1e-12)

    def test_large_groups_stay_finite_and_lose_the_bias(self):
        bias = group_bias(tensor64([1e-3, 0.3, 0.5]), num_generations=4096)
        # 1e-3 × 0.999^4096 / (1 − 0.999^4096) is what is left at p = 1e-3
        survival = 0.999**4096
        assert bias[0].item() == pytest.approx(1e-3 * survival / (1 - survival), rel=1e-9)
        assert bias[1:].abs().max() < 1e-12


class TestOverestimateProbability:
    @pytest.mark.parametrize("num_generations", [2, 5, 8, 16])
    @pytest.mark.parametrize("epsilon", [0.0, 0.07])
    def test_is_the_sum_of_the_theorem(self, num_generations, epsilon):
        p = torch.linspace(0.0131, 0.9871, 101, dtype=torch.float64)
        expected = tensor64([exact_tail(x, num_generations, epsilon) for x in p.tolist()])
        actual = overestimate_probability(p, num_generations=num_generations, epsilon=epsilon)
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-14)

    def test_equality_is_not_larger(self):
        # 0.3 = 3/10 exactly; 0.7 + 0.1 is a rounding error below 8/10
        for p, epsilon, smallest in [(0.3, 0.0, 4), (0.7, 0.1, 9), (0.1, 0.2, 4)]:
            terms = [math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in range(1, 10)]
            expected = sum(terms[smallest - 1 :]) / sum(terms)
            actual = overestimate_probability(p, num_generations=10, epsilon=epsilon).item()
            assert actual == pytest.approx(expected, rel=1e-12)

    def test_sure_and_impossible(self):
        p = tensor64([0.0, 0.01, 0.99, 1.0])
        assert overestimate_probability(p, num_generations=8).tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])


class TestMeanMisestimateProbability:
    @pytest.mark.parametrize(("high", "smallest", "stated"), [(0.5, 0.641, 0.63), (0.25, 0.781, 0.78)])
    def test_corollary_1(self, high, smallest, stated):
        values = [mean_misestimate_probability(num_generations=g, high=high) for g in range(2, 9)]
        assert min(values) == values[-1] == pytest.approx(smallest, abs=5e-4)
        assert min(values) > stated
        assert overestimate_probability(0.38, num_generations=8).item() < 0.4  # it does not hold for every single p

    def test_closed_form_for_three(self):
        # f = 1 below 1/3 and p above it: 2 (1/3 + (1/4 − 1/9) / 2)
        expected = 2 * (1 / 3 + (1 / 4 - 1 / 9) / 2)
        assert mean_misestimate_probability(num_generations=3) == pytest.approx(expected, abs=1e-13)
        # across 1/2, where f has a kink: p to 1/2, 1 − p to 2/3, 1 beyond
        expected = ((0.25 - 0.16) / 2 + (1 / 4 - 1 / 9) / 2 + (0.7 - 2 / 3)) / 0.3
        actual = mean_misestimate_probability(num_generations=3, low=0.4, high=0.7)
        assert actual == pytest.approx(expected, abs=1e-13)

    @pytest.mark.parametrize(
        ("num_generations", "low", "high", "epsilon"),
        [(8, 0.0, 0.5, 0.0), (5, 0.1, 0.45, 0.03), (8, 0.4, 0.7, 0.05), (6, 0.5, 1.0, 0.0), (7, 0.2, 0.9, -0.02)],
    )
    def test_against_a_fine_grid(self, num_generations, low, high, epsilon):
        n = 200_000
        p = low + (high - low) * (torch.arange(n, dtype=torch.float64) + 0.5) / n
        over = overestimate_probability(p, num_generations=num_generations, epsilon=epsilon)
        under = overestimate_probability(1 - p, num_generations=num_generations, epsilon=epsilon)
        expected = torch.where(p < 0.5, over, under).mean().item()
        actual = mean_misestimate_probability(num_generations=num_generations, low=low, high=high, epsilon=epsilon)
        # a cell of the grid with a jump is wrong by at most 1/n
        assert actual == pytest.approx(expected, abs=num_generations / n)


class TestCorollaries:
    @pytest.mark.parametrize("num_generations", range(2, 10))
    def test_the_smallest_for_a_single_prompt(self, num_generations):
        """Corollary 1's 0.63 is a mean over prompts: a single one has 0.36 with eight responses."""
        p = torch.linspace(1e-4, 0.5 - 1e-4, 5001, dtype=torch.float64)
        on_a_grid = overestimate_probability(p, num_generations=num_generations).min().item()
        smallest = smallest_misestimate_probability(num_generations=num_generations)
        assert smallest <= on_a_grid + 1e-12 and on_a_grid - smallest < 2e-3
        if num_generations == 8:
            assert smallest == pytest.approx(0.357, abs=5e-4)

    @pytest.mark.parametrize("num_generations", [2, 3, 8, 64])
    def test_corollary_3_every_mixed_group_errs_outside_of_the_range_and_not_inside(self, num_generations):
        low, high = sure_misestimate_range(num_generations=num_generations)
        assert (low, high) == pytest.approx((1 / num_generations, 1 - 1 / num_generations), abs=1e-15)

        def over(p):
            return overestimate_probability(p, num_generations=num_generations).item()

        assert over(low * (1 - 1e-9)) == pytest.approx(1, abs=1e-14) and over(high * (1 + 1e-9)) == 0
        if num_generations > 2:
            assert 0 < over(low * (1 + 1e-9)) < 1 and 0 < over(high * (1 - 1e-9)) < 1


class TestRolloutsPerPrompt:
    """What 8 and what 128 responses say of a prompt."""

    @pytest.mark.parametrize("num_generations", [2, 3, 8, 64, 128])
    def test_mean_bias_and_probability_are_those_of_the_theorem(self, num_generations):
        p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
        given = {"num_generations": num_generations}
        expected = 1 - p**num_generations - (1 - p) ** num_generations
        torch.testing.assert_close(mixed_group_probability(p, **given), expected, rtol=0, atol=1e-13)
        fraction = (p - p**num_generations) / expected
        torch.testing.assert_close(group_mean(p, **given)[0], fraction, rtol=0, atol=1e-13)
        torch.testing.assert_close(group_bias(p, **given), fraction - p, rtol=0, atol=1e-13)

    @pytest.mark.parametrize(
        ("p", "num_generations"), [(0.05, 8), (0.25, 8), (0.4, 8), (0.8, 4), (0.1, 2), (0.05, 128), (0.9, 128)]
    )
    def test_simulation(self, p, num_generations):
        n, given = 3_200_000 // num_generations, {"num_generations": num_generations}
        p_hat = mixed_group_means(p, num_generations, n_groups=n, seed=0)
        mean, std = (x.item() for x in group_mean(p, **given))
        assert p_hat.std().item() == pytest.approx(std, rel=0.03, abs=1e-9)
        standard_error = p_hat.std().item() / math.sqrt(len(p_hat))
        # with G = 2 the mean of a mixed group is always 1/2
        assert abs(p_hat.mean().item() - mean) <= 4 * standard_error + 1e-12
        # the bias is far outside that error: the simulation can tell a wrong formula from the right one
        assert abs(p_hat.mean().item() - p) > 20 * standard_error or num_generations == 128
        over = overestimate_probability(p, epsilon=0.1, **given).item()
        for found, expected, draws in (
            (len(p_hat) / n, mixed_group_probability(p, **given).item(), n),
            ((p_hat - p > 0.1).double().mean().item(), over, len(p_hat)),
        ):
            assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / draws) + 1e-9

    def test_a_rare_right_answer_is_not_rounded_away(self):
        assert mixed_group_probability(1e-18, num_generations=8).item() == pytest.approx(8e-18, rel=1e-12)

    def test_the_numbers_of_the_page(self):
        """docs/theory_difficulty.md: a prompt that is solved one time in twenty."""
        for n, found, mean, std in ((8, 0.337, 0.149, 0.055), (128, 0.999, 0.050, 0.019)):
            given = {"num_generations": n}
            assert mixed_group_probability(0.05, **given).item() == pytest.approx(found, abs=5e-4)
            assert [x.item() for x in group_mean(0.05, **given)] == pytest.approx([mean, std], abs=5e-4)


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

    @pytest.mark.parametrize("prior", [0.3, 0.5, 0.7])
    @pytest.mark.parametrize("response", ["any", "right", "wrong"])
    def test_the_scales_that_reduce_it_are_those_that_reduce_it(self, prior, response):
        p = torch.tensor([0.02, 0.1, 0.25, 0.45, 0.6, 0.77, 0.9, 0.99], dtype=torch.float64)
        given = {"num_generations": 8, "prior": prior, "response": response}
        before = reweighted_bias(p, **given).abs()
        low, high = reducing_scales(p, **given)
        assert (low >= 0).all() and (low <= high).all() and (low < high).any()
        for scale in torch.linspace(0.01, 6.0, 600).tolist():
            inside = (low + 1e-9 < scale) & (scale < high - 1e-9)
            outside = (scale < low - 1e-9) | (high + 1e-9 < scale)
            after = reweighted_bias(p, scale=scale, **given).abs()
            assert (after < before)[inside].all() and not (after < before)[outside].any()

    def test_what_1_3_does_on_a_hard_prompt(self):
        """docs/theory_difficulty.md: a right answer's advantage leaves r − p where a group's mean comes nearer."""

        def biases(p, response):
            given = {"num_generations": 8, "prior": 0.5, "response": response}
            return [reweighted_bias(p, scale=scale, **given).item() for scale in (None, 1.3)]

        for p in (0.05, 0.1, 0.2, 0.3, 0.4):
            before, after = biases(p, "right")
            assert before < 0 and after > -before
        assert biases(0.1, "any") == pytest.approx([-0.076, 0.034], abs=5e-4)
        assert biases(0.1, "right") == pytest.approx([-0.112, 0.488], abs=5e-4)
        for p, prior in ((0.1, 0.5), (0.3, 0.7)):  # wrong answers are the mirror image
            right = reweighted_bias(p, num_generations=8, prior=prior, scale=1.3, response="right")
            wrong = reweighted_bias(1 - p, num_generations=8, prior=1 - prior, scale=1.3, response="wrong")
            torch.testing.assert_close(wrong, -right, rtol=1e-12, atol=0)
        before, after = biases(0.25, "any")  # and in the middle not even that
        assert abs(after) > abs(before)

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

    def test_no_one_scale_serves_right_and_wrong_answers(self):
        p = torch.tensor([0.05, 0.15, 0.25, 0.3, 0.5, 0.75], dtype=torch.float64)
        ranges = [reducing_scales(p, num_generations=8, prior=0.5, response=r) for r in ("right", "wrong")]
        low = torch.stack([low for low, _ in ranges]).amax(0)
        high = torch.stack([high for _, high in ranges]).amin(0)
        assert (low < high).tolist() == [True, True, False, False, True, False]  # a scale of its own for each p …
        assert low.max() > high.min()  # … where there is one, and none for all


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

    def test_starts_at_0_and_is_1_after_a_sure_end(self):
        bound = td_upper_bound(tensor64([[0.5, 1.0, 0.2, 1.0], [0.0, 0.0, 0.0, 0.0]]))
        assert bound.tolist() == [[0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]

    def test_small_probabilities_are_not_lost_in_float32(self):
        # the float32 product of 1 − 1e-9 is 1
        bound = td_upper_bound(torch.full((1, 4097), 1e-9))
        assert bound[0, -1].item() == pytest.approx(4096e-9, rel=1e-3)

    def test_bounds_the_change_in_value_of_a_chain(self):
        # a chain that at step k ends with probability π_k and reward r_k, and gets r_T at its end
        generator = torch.Generator().manual_seed(6)
        eos_probs = torch.rand(500, 7, generator=generator, dtype=torch.float64) * 0.4
        rewards = torch.randint(0, 2, (500, 8), generator=generator).double()
        # the worst case: whoever stops early is wrong
        rewards[0] = tensor64([0] * 7 + [1])
        eos_probs[0, -1] = 0.0
        values = [rewards[:, -1]]
        for k in reversed(range(7)):
            values.insert(0, eos_probs[:, k] * rewards[:, k] + (1 - eos_probs[:, k]) * values[0])
        values = torch.stack(values[:7], dim=-1)
        change = (values - values[:, :1]).abs()
        bound = td_upper_bound(eos_probs)
        assert (change <= bound + 1e-14).all() and (bound.diff(dim=-1) >= 0).all()
        # it is attained, so that a product with one factor more or less would show
        assert change[0, -1].item() == pytest.approx(bound[0, -1].item(), abs=1e-14)
        assert bound[0, -1] > bound[0, -2] + 1e-3

    def test_rounding_above_1_is_a_sure_end(self):
        assert td_upper_bound(tensor64([0.5, 1.0 + 1e-7, 0.1])).tolist() == [0.0, 0.5, 1.0]

    def test_padding_and_types(self):
        eos_probs = tensor64([[0.1, 0.2, 0.3]])
        padded = torch.nn.functional.pad(eos_probs, (0, 4))
        assert torch.equal(td_upper_bound(padded)[:, :3], td_upper_bound(eos_probs))
        for shape in ((2, 0), (0, 3), (2, 1)):
            assert td_upper_bound(torch.full(shape, 0.5)).shape == shape
        assert td_upper_bound(torch.full((1, 3), 0.5, dtype=torch.bfloat16)).dtype == torch.float32


WEIGHT = {"p": 0.3, "num_generations": 8, "prior": 0.5, "scale": 1.3}
TRACE = {"decay": 0.9, "length": 4}


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        *((group_bias, {"p": p, "num_generations": 8}, "p must") for p in (-0.1, 1.1, math.nan)),
        (group_bias, {"p": 0.5, "num_generations": 1}, "num_generations must"),
        (overestimate_probability, {"p": 0.5, "num_generations": 8, "epsilon": math.inf}, "epsilon must"),
        (overestimate_probability, {"p": 2.0, "num_generations": 8}, "p must"),
        *(
            (mean_misestimate_probability, {"num_generations": 8, "low": low, "high": high}, "the interval of p")
            for low, high in ((0.5, 0.5), (-0.1, 0.5), (0.2, 1.1), (math.nan, 0.5))
        ),
        (smallest_misestimate_probability, {"num_generations": 1}, "num_generations must"),
        (sure_misestimate_range, {"num_generations": 1}, "num_generations must"),
        (reweighted_bias, {**WEIGHT, "p": 1.2}, "p must"),
        (reweighted_bias, {**WEIGHT, "num_generations": 1}, "num_generations must"),
        (reweighted_bias, {**WEIGHT, "scale": 0.0}, "scale must"),
        (reweighted_bias, {**WEIGHT, "response": "best"}, "response must"),
        (trace_variance, {**TRACE, "decay": 1.1}, "decay must"),
        (trace_variance, {**TRACE, "length": -1}, "length must"),
        (trace_variance, {**TRACE, "variance": -1.0}, "variance must"),
        (trace_variance, {**TRACE, "selective_rate": 1.5}, "selective_rate must"),
    ],
)
def test_bad_arguments_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        function(**arguments)
