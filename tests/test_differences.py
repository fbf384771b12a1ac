"""Paired differences: p-values and intervals against closed forms, brute force and simulation; how many are needed."""

from itertools import product
from math import comb

import numpy as np
import pytest

from trl_credit.evaluation import difference_interval, holm, paired_difference, sign_flip_p, wilson_interval
from trl_credit.evaluation.estimators import bootstrap_interval, pass_at_k
from trl_credit.evaluation.power import Spread, needed, needed_problems, needed_samples


NONE_OF_24 = 1.959963984540054**2 / (24 + 1.959963984540054**2)  # z²/(n + z²)


def rate(runs: int, found: int) -> float:
    return found / runs


def test_flipped_signs_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(40):
        values = rng.integers(-4, 5, int(rng.integers(1, 10))) / rng.choice([3, 8])
        flips = np.array(list(product((1, -1), repeat=len(values))))
        means = np.abs(flips @ values)
        assert sign_flip_p(values) == pytest.approx(np.mean(means >= abs(values.sum()) - 1e-9), abs=1e-12)


def test_flipped_signs_in_closed_form():
    for m in (1, 5, 20):  # all on one side: only this pattern and its mirror are as far
        assert sign_flip_p([0.25] * m + [0.0] * 7) == 2.0 ** (1 - m)
    assert sign_flip_p([0.0] * 24) == 1.0 and sign_flip_p([0.5]) == 1.0
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0  # sums to 0 but for rounding
    # 21 better and 9 worse by the same: the exact test of McNemar, by the binomial
    exact = 2 * sum(comb(30, i) for i in range(21, 31)) / 2**30
    found = sign_flip_p([1.0] * 21 + [-1.0] * 9, draws=40_000)
    assert abs(found - exact) < 5 * (exact * (1 - exact) / 40_000) ** 0.5
    assert sign_flip_p([0.1] * 200, draws=999) == 1 / 1000  # never 0
    many = np.random.default_rng(1).normal(size=100)
    assert sign_flip_p(many, draws=999, seed=3) == sign_flip_p(many, draws=999, seed=3)


@pytest.mark.parametrize(
    ("problems", "samples", "runs", "expected"),
    [
        (12, 64, 2000, 0.05),  # all patterns counted; fine steps of the scores
        (80, 64, 1500, 0.05),  # a choice of them
        (14, 4, 2000, 0.03),  # coarse steps: ties with what was seen count, which makes p larger
    ],
)
def test_the_p_value_is_below_alpha_as_often_as_alpha_says(problems, samples, runs, expected):
    # models that are alike: other samples from the same chances
    rng, hits = np.random.default_rng(2), 0
    for run in range(runs):
        chance = rng.beta(1, 2, problems)
        a, b = rng.binomial(samples, chance) / samples, rng.binomial(samples, chance) / samples
        hits += sign_flip_p(b - a, draws=499, seed=run) <= 0.05
    assert abs(rate(runs, hits) - expected) < 4 * (0.05 * 0.95 / runs) ** 0.5


def test_the_p_value_of_different_numbers_of_samples():
    rng, hits, runs = np.random.default_rng(3), 0, 600
    for run in range(runs):
        chance = rng.beta(1, 2, 60)
        hits += sign_flip_p(rng.binomial(16, chance) / 16 - rng.binomial(4, chance) / 4, draws=499, seed=run) <= 0.05
    assert abs(rate(runs, hits) - 0.05) < 4 * (0.05 * 0.95 / runs) ** 0.5


def test_the_interval_covers_the_true_difference():
    # new problems and new samples each time: both sources of variance are in it
    rng, hits, runs = np.random.default_rng(4), 0, 500
    for run in range(runs):
        chance = rng.beta(2, 3, 60)
        other = 0.7 * chance + 0.2 * rng.integers(2, size=60)  # mean 0.28 + 0.1, from 0.4
        scores = rng.binomial(4, chance) / 4, rng.binomial(4, other) / 4
        low, high, kind = difference_interval(scores[1] - scores[0], resamples=800, seed=run)
        hits += low <= -0.02 <= high
        assert kind == "bootstrap"
    assert abs(rate(runs, hits) - 0.945) < 4 * (0.945 * 0.055 / runs) ** 0.5


def test_the_interval_is_that_of_the_differences():
    first, second = np.random.default_rng(5).integers(0, 5, (2, 40)) / 4
    found = paired_difference(first, second, seed=6)
    assert found.interval[:2] == bootstrap_interval(second - first, seed=6)
    assert found.value == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert (found.better, found.worse, found.same) == tuple(
        int(n) for n in ((second > first).sum(), (second < first).sum(), (second == first).sum())
    )
    back = paired_difference(second, first, seed=6)
    assert (back.value, back.p) == (-found.value, found.p)
    assert back.interval[:2] == pytest.approx([-found.interval.high, -found.interval.low], abs=0.02)


def test_no_difference_seen_is_not_no_difference():
    found = paired_difference([0.25] * 24, [0.25] * 24)
    assert found == (0.0, (pytest.approx(-NONE_OF_24), pytest.approx(NONE_OF_24), "wilson"), 1.0, 0, 0, 24)
    assert wilson_interval(0.0, 24)[1] == pytest.approx(NONE_OF_24)
    # rounding is no difference
    assert paired_difference([0.1 + 0.2] * 24, [0.3] * 24).same == 24
    all_won = paired_difference([0.0] * 24, [1.0] * 24)
    assert all_won.interval == (pytest.approx(1 - 2 * NONE_OF_24), 1.0, "wilson") and all_won.p == pytest.approx(
        2 / 2**20, abs=2e-5
    )
    # one problem says next to nothing: u = z²/(1 + z²) = 0.793
    one = paired_difference([0.0], [1.0])
    assert one.p == 1.0 and one.interval == (pytest.approx(1 - 2 * 0.7935, abs=1e-3), 1.0, "wilson")


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.3]) == [0.3] and holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_holm_keeps_the_chance_of_any_false_finding():
    rng, runs = np.random.default_rng(7), 4000
    found = sum(min(holm(rng.random(5).tolist())) <= 0.05 for _ in range(runs))
    assert abs(rate(runs, found) - (1 - (1 - 0.05 / 5) ** 5)) < 4 * (0.05 * 0.95 / runs) ** 0.5


# How many are needed

CASES = [(True, True), (True, True), (False, False), (True, False), (False, True), (False, False), (False, True)]


def every_pattern(n: int) -> tuple[list[list[bool]], list[list[bool]]]:
    """A problem for each way in which n pairs of samples can come out, all equally likely."""
    patterns = list(product(CASES, repeat=n))
    return [[a for a, _ in p] for p in patterns], [[b for _, b in p] for p in patterns]


def difference_of(first: list[list[bool]], second: list[list[bool]], k: int) -> np.ndarray:
    return np.array(
        [pass_at_k(len(b), sum(b), k) - pass_at_k(len(a), sum(a), k) for a, b in zip(first, second, strict=True)]
    )


@pytest.mark.parametrize("k", [1, 2])
def test_the_variance_within_problems_is_exact(k):
    # over all patterns of one chance the estimates' mean is what they estimate
    spread = Spread(*every_pattern(4), k)
    assert spread.between == pytest.approx(0, abs=1e-3)  # a variance over 2401 patterns, by n − 1
    for n in (2, 3, 4):
        assert spread.within(n, n) == pytest.approx(np.var(difference_of(*every_pattern(n), k)), abs=1e-12)
    assert spread.total == pytest.approx(spread.within(4, 4) * 2401 / 2400, abs=1e-12)


def test_the_variance_within_problems_of_different_numbers_of_samples():
    first, second = every_pattern(3)
    more = [[*a, extra] for a in first for extra in (True, True, True, False, False, False, False)]
    less = [b for b in second for _ in range(7)]
    spread = Spread(more, less, 1)
    assert spread.within(4, 3) == pytest.approx(np.var(difference_of(more, less, 1)), abs=1e-12)


def test_the_variance_of_one_sample_in_closed_form():
    # independent samples: c(n − c)/(n²(n − 1)) of each; with shared random numbers the covariance comes off
    a, b = [[True, True, False, False]] * 2, [[True, False, True, False]] * 2
    assert Spread(a, b, 1).within(4, 4) == pytest.approx(2 * 2 * 2 / (16 * 3))
    assert Spread(a, a, 1).within(4, 4) == 0.0


def simulated(rng: np.random.Generator, problems: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts of two models of which the second is better by .1, but by −.05 or .25 on any one problem."""
    chance = rng.uniform(0.2, 0.6, problems)[:, None]
    other = chance + 0.1 + rng.choice([-0.15, 0.15], problems)[:, None]
    return tuple(rng.random((problems, n)) < c for c in (chance, other))


def test_what_is_needed_has_the_power_that_was_asked_for():
    rng = np.random.default_rng(8)
    spread = Spread(*simulated(rng, 20_000, 4), 1)
    # .0225, and (p(1 − p) + q(1 − q)) / n = 0.4342 / n
    assert spread.between == pytest.approx(0.0225, rel=0.15)
    assert spread.within(8, 8) == pytest.approx(0.4342 / 8, rel=0.05)
    factor = (1.959963984540054 + 0.8416212335729143) ** 2
    problems = needed_problems(0.1, spread.total)
    assert problems == int(np.ceil(factor * spread.total / 0.01))
    samples = needed_samples(0.1, spread, 60)
    assert spread.between + spread.within(samples, samples) <= 60 * 0.01 / factor
    assert spread.between + spread.within(samples - 1, samples - 1) > 60 * 0.01 / factor
    for count, n in ((problems, 4), (60, samples)):
        runs, found = 400, 0
        for run in range(runs):
            a, b = simulated(rng, count, n)
            found += sign_flip_p(b.mean(1) - a.mean(1), draws=399, seed=run) <= 0.05
        assert abs(rate(runs, found) - 0.8) < 4 * (0.8 * 0.2 / runs) ** 0.5 + 0.01, (count, n)


def test_no_number_of_samples_makes_up_for_few_problems():
    spread = Spread(*simulated(np.random.default_rng(9), 2000, 4), 1)
    assert needed_samples(0.1, spread, 10) == float("inf")
    assert needed_samples(0.0, spread, 10) is None and needed_problems(0.0, 0.1) is None
    assert needed(0.3, [0.3], None) == (None, None)  # one problem does not vary
    assert needed(0.5, [0.5, 0.5], None) == (2, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_difference([], []), "one score per problem"),
        (lambda: paired_difference([0.5], [0.5, 0.5]), "one score per problem"),
        (lambda: paired_difference([float("nan")], [0.5]), r"scores in \[0, 1\]"),
        (lambda: paired_difference([2.0], [0.5]), r"scores in \[0, 1\]"),
        (lambda: sign_flip_p([0.1, float("nan")]), "finite differences"),
        (lambda: sign_flip_p([0.1], draws=0), "at least 1 draw"),
        (lambda: Spread([[True]] * 3, [[True]] * 3, 1), "wants 2 samples of each of two problems"),
        (lambda: Spread([[True] * 4], [[True] * 4], 1), "of two problems"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
