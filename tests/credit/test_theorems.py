"""The theorems of benchmarks/theorems.py: as printed, by hand, and over all groups with the package's own functions.

Shares of noise and credit are compared with sums over tokens in tests/loss/test_metrics.py."""

import math
from functools import partial
from itertools import product

import pytest
import theorems
import torch
from theorems import relative_progress

from trl_credit.credit.advantages import group_advantage, td_upper_bound
from trl_credit.credit.difficulty import difficulty_weight, group_accuracy
from trl_credit.credit.shares import last_tokens, noise_outside
from trl_credit.credit.weights import traced_credit


def tensor64(values):
    return torch.tensor(values, dtype=torch.float64)


# In which sense a group is biased: docs/algorithms/ha_dw.md, by all 2^G groups with the advantages of training


@pytest.mark.parametrize("prior", [0.5, 0.3])
@pytest.mark.parametrize(("n", "p"), [(2, 0.3), (4, 0.25), (8, 0.1), (8, 0.75)])
def test_expected_advantages_and_gradients_by_enumeration(n, p, prior):
    rewards = tensor64(list(product([0.0, 1.0], repeat=n)))
    chance = (p**rewards * (1 - p) ** (1 - rewards)).prod(1, keepdim=True)
    p_hat = group_accuracy(rewards.flatten(), num_generations=n, reward_range=(0.0, 1.0)).repeat_interleave(n)
    plain = group_advantage(rewards.flatten(), num_generations=n, scale=False)
    phi = difficulty_weight(plain, p_hat=p_hat, prior=prior, scale=1.0).view(-1, n)
    plain, is_mixed = plain.view(-1, n), chance * ((p_hat > 0) & (p_hat < 1)).view(-1, n)
    of_group, hat = is_mixed[:, 0] / is_mixed[:, 0].sum(), rewards.mean(1)
    mean = (of_group * hat).sum()
    spread, over = (of_group * (hat - mean).square()).sum().sqrt(), of_group[hat > p + 0.1 + 1e-12].sum()
    exact = (is_mixed[:, 0].sum(), mean, spread, mean - p, over)
    values = (theorems.mixed_group_probability(p, num_generations=n), *theorems.group_mean(p, num_generations=n))
    values += (
        theorems.group_bias(p, num_generations=n),
        theorems.overestimate_probability(p, num_generations=n, epsilon=0.1),
    )
    torch.testing.assert_close(torch.stack(values), torch.stack(exact), rtol=0, atol=1e-13)
    for response, of in (("any", 1.0), ("right", rewards), ("wrong", 1.0 - rewards)):
        weight = is_mixed * of / (is_mixed * of).sum()
        expected = [(weight * x).sum() for x in (rewards - p, plain, plain * phi)]
        means = theorems.expected_advantages(p, num_generations=n, prior=prior, response=response)
        torch.testing.assert_close(torch.stack(means), torch.stack(expected), rtol=0, atol=1e-13)
    assert theorems.expected_advantages(p, num_generations=n)[1].item() == pytest.approx(0.0, abs=1e-15)
    std = rewards.std(1, keepdim=True).where(is_mixed[:, :1] > 0, 1.0)
    for divided, of_std in ((False, 1.0), (True, std)):
        for kind, factor in ((None, 1.0), (prior, 1.3 * phi)):
            expected = (chance * plain * factor / of_std * (rewards - p)).sum() / (n * p * (1 - p))
            options = {"num_generations": n, "divides_by_std": divided, "prior": kind, "scale": 1.3}
            assert theorems.gradient_factor(p, **options).item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_weight_of_prompts_and_the_scales_of_the_page():
    std = {"num_generations": 8, "divides_by_std": True}
    p = tensor64([0.1, 0.25, 0.5, 0.75, 0.9])
    factor = theorems.gradient_factor(p, **std, prior=0.5, scale=1.3) / theorems.gradient_factor(p, **std)
    assert factor.tolist() == pytest.approx([1.701, 1.474, 1.317, 1.474, 1.701], abs=5e-4)
    assert (1.3 * theorems.expected_advantages(0.1, num_generations=8)[2]).item() == pytest.approx(0.110, abs=5e-4)
    for response, ends in (("right", (0.822, 1.057)), ("wrong", (1.172, 1.195))):
        scales = theorems.reducing_scales(0.25, num_generations=8, prior=0.5, response=response)
        assert [x.item() for x in scales] == pytest.approx(ends, abs=5e-4)
    right, wrong = (
        theorems.reducing_scales(0.25, num_generations=4, prior=0.5, response=x) for x in ("right", "wrong")
    )
    assert right[0] < wrong[1]  # an intersection, which G = 8 does not have
    c = theorems.corrected_baseline(0.1, num_generations=8).item()
    scale, x = theorems.exact_scale(0.125, c=c), math.log(theorems.exact_scale(0.125, c=c) / c)
    assert scale == pytest.approx(0.778, abs=5e-4)
    for r, sign in ((1.0, 1), (0.0, -1)):  # λ e^{±x} (r − p̂) is r − c p̂ for both
        assert scale * math.exp(sign * x) * (r - 0.125) == pytest.approx(r - c * 0.125)


def test_corollary_1_given_the_signal_and_lemma_1():
    """45/64 by hand; Tables 4 and 5 for the mean in which each p weighs the same."""
    error = partial(theorems.mean_misestimate_probability, num_generations=8)
    assert error(num_generations=4, given_signal=True) == pytest.approx(45 / 64, abs=1e-12)
    means = [error(high=high, given_signal=given) for given in (True, False) for high in (0.5, 0.25)]
    assert means == pytest.approx([0.580, 0.708, 0.640945, 0.781130], abs=5e-4)
    assert theorems.smallest_misestimate_probability(num_generations=8) == pytest.approx(0.357, abs=5e-4)
    for p_hat, least in ((0.125, 0.0614), (0.5, 0.0756)):
        assert theorems.lemma_1(p_hat=p_hat, num_generations=8) == pytest.approx((0.5155, least), abs=5e-5)
    assert theorems.group_bias(0.137, num_generations=8) < 0.0614 < theorems.group_bias(0.135, num_generations=8)


# The variance of a trace


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
def test_the_variance_of_a_trace_by_hand_and_at_its_limits(arguments, expected):
    assert theorems.trace_variance(**arguments) == pytest.approx(expected, rel=1e-12, abs=1e-15)


# The upper bound of TD


def test_small_probabilities_are_not_lost_in_float32():
    # the float32 product of 1 − 1e-9 is 1
    bound = td_upper_bound(torch.full((1, 4097), 1e-9))
    assert bound[0, -1].item() == pytest.approx(4096e-9, rel=1e-3)


def test_padding_and_types():
    eos_probs = tensor64([[0.1, 0.2, 0.3]])
    padded = torch.nn.functional.pad(eos_probs, (0, 4))
    assert torch.equal(td_upper_bound(padded)[:, :3], td_upper_bound(eos_probs))
    for shape in ((2, 0), (0, 3), (2, 1)):
        assert td_upper_bound(torch.full(shape, 0.5)).shape == shape
    assert td_upper_bound(torch.full((1, 3), 0.5, dtype=torch.bfloat16)).dtype == torch.float32


# The end of a response, progress, and noise: docs/theory.md, "On-policy traces" and "What a selector can gain"


@pytest.mark.parametrize(("decay", "tokens", "share"), [(0.9, 28, 0.605), (0.99, 298, 0.099)])
def test_the_end_of_a_long_response(decay, tokens, share):
    """The tokens whose coefficient is more than 5 % below 1/(1 − g), and the last 20 tokens' share."""
    c = traced_credit(torch.ones(1, 40_000, dtype=torch.float64), decay=decay, style="recent")
    assert (c < 0.95 / (1 - decay)).sum() == tokens
    above, below = last_tokens(c, mask_t=torch.ones_like(c))
    assert (above / below).item() == pytest.approx(share, abs=0.003)


@pytest.mark.parametrize("share", [0.0, 0.16, 0.68, 0.9])
def test_what_a_selector_gains_at_most(share):
    signal, noise = tensor64([1.0, 0.0]), tensor64([1 - share, share])
    gains = relative_progress(tensor64([[10.0, 1.0], [1.0, 0.0]]), signal_t=signal, noise_t=noise)
    assert gains.tolist() == pytest.approx([1 / (1 - share + share / 100), 1 / (1 - share)])
    missed = relative_progress(tensor64([10.0, 1.0]), signal_t=tensor64([0.0, 1.0]), noise_t=noise)
    assert missed.item() == pytest.approx(1 / (share + 100 * (1 - share)))


def test_the_noise_of_a_sure_token_is_not_rounded_away_and_nothing_is_read_outside_of_the_mask():
    logp, mask = torch.tensor([[-1e-9, torch.nan]]), torch.tensor([[1.0, 0.0]])
    assert noise_outside(logp, selected_t=torch.zeros(1, 2), mask_t=mask)[1].item() == pytest.approx(1e-9)
    assert [x.item() for x in last_tokens(torch.tensor([[-2.0, torch.nan]]), mask_t=mask)] == [2.0, 2.0]
