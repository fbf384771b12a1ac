"""Intervals, p-values and aggregates against closed forms, enumerations and simulation."""

from itertools import product
from math import comb

import numpy as np
import pytest

from trl_credit.lab.statistics import (
    FALSE_ALARMS,
    bootstrap_interval,
    difference_interval,
    false_alarm,
    holm,
    interquartile_mean,
    mean_interval,
    overlap,
    paired_difference,
    probability_of_improvement,
    sign_flip_p,
    wilson_interval,
)


Z = 1.959963984540054
NONE_OF_24 = Z**2 / (24 + Z**2)  # Wilson's upper end of 0 of 24


def assert_rate(hits: int, runs: int, expected: float, *, deviations: float = 4, spread: float | None = None) -> None:
    """Compares a simulated rate with its expectation, in standard deviations of a binomial."""
    p = expected if spread is None else spread
    assert abs(hits / runs - expected) < deviations * (p * (1 - p) / runs) ** 0.5


# Bootstrap and Wilson


def test_bootstrap_quantiles_are_those_of_the_binomial():
    n, p = 40, 0.25
    low, high = bootstrap_interval([1.0] * 10 + [0.0] * 30, resamples=40_000, seed=1)
    below = np.cumsum([comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)])
    assert [low, high] == [int(np.searchsorted(below, q)) / n for q in (0.025, 0.975)]


def test_degenerate_intervals_and_seeds():
    assert bootstrap_interval([0.3]) == (0.3, 0.3) and bootstrap_interval([0.1] * 7) == (0.1, 0.1)
    assert bootstrap_interval(np.ones((3, 1)), statistic=interquartile_mean) == (1.0, 1.0)
    scores = np.random.default_rng(0).random(3000)
    assert bootstrap_interval(scores, seed=3) == bootstrap_interval(scores, seed=3)
    assert bootstrap_interval(scores, seed=3) != bootstrap_interval(scores, seed=4)


@pytest.mark.parametrize(("right", "n"), [(0, 24), (24, 24), (3, 10), (1, 1)])
def test_wilsons_interval_ends_where_the_score_test_begins_to_reject(right, n):
    share = right / n
    low, high = wilson_interval(share, n)
    assert 0 <= low <= share <= high <= 1 and high - low > 0.1
    for end in (low, high):  # |p̂ − p| = z √(p(1 − p)/n), except at the ends of [0, 1]
        if end not in (0.0, 1.0):
            assert abs(share - end) == pytest.approx(Z * (end * (1 - end) / n) ** 0.5, abs=1e-12)


def test_no_score_is_known_exactly():
    assert mean_interval([0.0] * 24) == (0.0, pytest.approx(NONE_OF_24, abs=1e-12), "wilson")
    assert mean_interval([1.0] * 24) == (pytest.approx(1 - NONE_OF_24, abs=1e-12), 1.0, "wilson")
    low, high, kind = mean_interval([0.25] * 8)  # 2 of 8 is 0.071 … 0.591
    assert (low, high, kind) == (pytest.approx(0.0715, abs=1e-3), pytest.approx(0.5907, abs=1e-3), "wilson")
    scores = [0.0, 1.0, 0.5]
    assert mean_interval(scores, seed=5) == (*bootstrap_interval(scores, seed=5), "bootstrap")


# Paired differences


def test_flipped_signs_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(40):
        values = rng.integers(-4, 5, int(rng.integers(1, 10))) / rng.choice([3, 8])
        flips = np.array(list(product((1, -1), repeat=len(values))))
        means = np.abs(flips @ values)
        assert sign_flip_p(values) == pytest.approx(np.mean(means >= abs(values.sum()) - 1e-9), abs=1e-12)


def test_flipped_signs_in_closed_form():
    for m in (1, 5, 20):  # all on one side: only this pattern and its mirror are as far from 0
        assert sign_flip_p([0.25] * m + [0.0] * 7) == 2.0 ** (1 - m)
    assert sign_flip_p([0.0] * 24) == 1.0 and sign_flip_p([0.5]) == 1.0
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0  # sums to 0 except for rounding
    # 21 better and 9 worse by the same amount: McNemar's exact test
    exact = 2 * sum(comb(30, i) for i in range(21, 31)) / 2**30
    found = sign_flip_p([1.0] * 21 + [-1.0] * 9, draws=40_000)
    assert abs(found - exact) < 5 * (exact * (1 - exact) / 40_000) ** 0.5
    assert sign_flip_p([0.1] * 200, draws=999) == 1 / 1000  # never 0
    many = np.random.default_rng(1).normal(size=100)
    assert sign_flip_p(many, draws=999, seed=3) == sign_flip_p(many, draws=999, seed=3)


@pytest.mark.parametrize(
    ("problems", "samples", "runs", "expected"),
    [
        (12, (64, 64), 2000, 0.05),  # all patterns enumerated; fine steps of the scores
        (80, (64, 64), 1500, 0.05),  # random patterns
        (14, (4, 4), 2000, 0.03),  # coarse steps: ties with the observed mean count, which raises p
        (60, (16, 4), 600, 0.05),  # different numbers of samples
    ],
)
def test_the_p_value_of_equal_models_is_below_alpha_as_often_as_alpha_says(problems, samples, runs, expected):
    rng, hits = np.random.default_rng(2), 0
    for run in range(runs):
        chance = rng.beta(1, 2, problems)
        a, b = (rng.binomial(n, chance) / n for n in samples)
        hits += sign_flip_p(b - a, draws=499, seed=run) <= 0.05
    assert_rate(hits, runs, expected, spread=0.05)


def test_the_interval_covers_the_true_difference():
    # new problems and new samples in each run: the interval contains both sources of variance
    rng, hits, runs = np.random.default_rng(4), 0, 500
    for run in range(runs):
        chance = rng.beta(2, 3, 60)
        other = 0.7 * chance + 0.2 * rng.integers(2, size=60)  # mean 0.28 + 0.1, from 0.4
        scores = rng.binomial(4, chance) / 4, rng.binomial(4, other) / 4
        low, high, kind = difference_interval(scores[1] - scores[0], resamples=800, seed=run)
        hits += low <= -0.02 <= high
        assert kind == "bootstrap"
    assert_rate(hits, runs, 0.945)


def test_the_interval_is_that_of_the_differences():
    first, second = np.random.default_rng(5).integers(0, 5, (2, 40)) / 4
    found = paired_difference(first, second, seed=6)
    assert found.interval[:2] == bootstrap_interval(second - first, seed=6)
    assert found.value == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert found[3:] == tuple(int(n.sum()) for n in (second > first, second < first, second == first))
    back = paired_difference(second, first, seed=6)
    assert (back.value, back.p) == (-found.value, found.p)
    assert back.interval[:2] == pytest.approx([-found.interval.high, -found.interval.low], abs=0.02)


def test_no_difference_seen_is_not_no_difference():
    found = paired_difference([0.25] * 24, [0.25] * 24)
    assert found == (0.0, (pytest.approx(-NONE_OF_24), pytest.approx(NONE_OF_24), "wilson"), 1.0, 0, 0, 24)
    assert paired_difference([0.1 + 0.2] * 24, [0.3] * 24).same == 24  # rounding is no difference
    all_won = paired_difference([0.0] * 24, [1.0] * 24)
    assert all_won.interval == (pytest.approx(1 - 2 * NONE_OF_24), 1.0, "wilson")
    assert all_won.p == pytest.approx(2 / 2**20, abs=2e-5)
    one = paired_difference([0.0], [1.0])  # u = z²/(1 + z²) = 0.793
    assert one.p == 1.0 and one.interval == (pytest.approx(1 - 2 * 0.7935, abs=1e-3), 1.0, "wilson")


def test_holm_by_hand_and_by_simulation():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.3]) == [0.3] and holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]
    rng, runs = np.random.default_rng(7), 4000
    hits = sum(min(holm(rng.random(5).tolist())) <= 0.05 for _ in range(runs))
    assert_rate(hits, runs, 1 - (1 - 0.05 / 5) ** 5, spread=0.05)


# Aggregates over runs


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (3, 1), (4, 1), (5, 1), (7, 2), (10, 3)])
def test_interquartile_mean_drops_a_quarter_at_each_end(runs, tasks):
    scores = np.random.default_rng(0).normal(size=(2, runs, tasks))
    for one, value in zip(scores, interquartile_mean(scores), strict=True):
        flat = sorted(one.ravel().tolist())
        cut = int(0.25 * len(flat))
        assert value == pytest.approx(sum(flat[cut : len(flat) - cut]) / (len(flat) - 2 * cut))
    assert interquartile_mean(np.array([[0.0], [1.0], [2.0], [100.0]])) == 1.5


def test_probability_of_improvement_counts_all_pairs():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 4, size=(5, 2)).astype(float), rng.integers(0, 4, size=(3, 2)).astype(float)
    pairs = [[1.0 if a > b else 0.5 if a == b else 0.0 for a in x[:, task] for b in y[:, task]] for task in range(2)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean([np.mean(task) for task in pairs]))
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)
    assert probability_of_improvement(y + 10, x) == 1 and probability_of_improvement(x, x) == 0.5


def quantiles(values: list[float]) -> tuple[float, float]:
    return tuple(np.quantile(values, [0.025, 0.975]))


def test_runs_are_drawn_within_each_task():
    scores = np.array([[0.1, 10.0], [0.5, 30.0], [0.6, 20.0]])
    draws = [list(draw) for draw in product(range(3), repeat=3)]
    every = [interquartile_mean(np.stack([scores[a, 0], scores[b, 1]], axis=1)) for a in draws for b in draws]
    found = bootstrap_interval(scores, statistic=interquartile_mean, resamples=20_000)
    assert found == pytest.approx(quantiles(every), abs=0.2)
    whole_runs = [interquartile_mean(scores[draw]) for draw in draws]
    assert quantiles(whole_runs) != pytest.approx(quantiles(every), abs=0.2)  # the interval without strata


def test_intervals_of_one_and_of_two_groups_are_those_of_all_draws():
    scores = np.array([[0.1], [0.5], [0.6], [0.95]])
    every = [interquartile_mean(scores[list(draw)]) for draw in product(range(4), repeat=4)]
    found = bootstrap_interval(scores, statistic=interquartile_mean, resamples=20_000)
    assert found == pytest.approx(quantiles(every), abs=0.02)
    x, y = np.array([[1.0], [3.0], [5.0]]), np.array([[2.0], [2.5], [4.0]])
    draws = [list(draw) for draw in product(range(3), repeat=3)]
    every = [float(probability_of_improvement(x[a], y[b])) for a in draws for b in draws]
    found = bootstrap_interval(x, y, statistic=probability_of_improvement, resamples=20_000)
    assert found == pytest.approx(quantiles(every), abs=0.03)


def test_overlap():
    assert overlap((0, 1), (1, 2)) and overlap((0, 3), (1, 2)) and not overlap((0, 1), (1.1, 2))
    assert overlap((1, 2), (0, 1)) and not overlap((1.1, 2), (0, 1))


@pytest.mark.parametrize("runs", FALSE_ALARMS)
def test_false_alarms_by_simulation(runs):
    rng, n, alarms = np.random.default_rng(2), 500, 0
    for seed, pair in enumerate(rng.normal(size=(n, 2, runs, 1))):
        one, other = (bootstrap_interval(s, statistic=interquartile_mean, resamples=1000, seed=seed) for s in pair)
        alarms += not overlap(one, other)
    assert alarms / n == pytest.approx(false_alarm(runs), abs=0.03)


def test_false_alarms_of_other_numbers_are_those_of_fewer_runs():
    assert [false_alarm(n) for n in (2, 3, 4, 5, 6, 50)] == [0.10, 0.10, 0.03, 0.02, 0.01, 0.01]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([]), "finite scores"),
        (lambda: bootstrap_interval([0.5, float("nan")]), "finite scores"),
        (lambda: bootstrap_interval(np.ones((3, 1)), np.array([[1.0], [np.nan]])), "finite scores"),
        (lambda: bootstrap_interval(np.ones((3, 1, 1))), r"the shape \(3, 1, 1\)"),
        (lambda: bootstrap_interval([0.5], level=1.0), "level must be in"),
        (lambda: wilson_interval(0.5, 4, level=0.0), "level must be in"),
        (lambda: wilson_interval(1.5, 4), r"share in \[0, 1\]"),
        (lambda: mean_interval([2.0, 2.0]), r"share in \[0, 1\]"),
        (lambda: paired_difference([], []), "one score per problem"),
        (lambda: paired_difference([0.5], [0.5, 0.5]), "one score per problem"),
        (lambda: paired_difference([float("nan")], [0.5]), r"scores in \[0, 1\]"),
        (lambda: paired_difference([2.0], [0.5]), r"scores in \[0, 1\]"),
        (lambda: sign_flip_p([0.1, float("nan")]), "finite differences"),
        (lambda: sign_flip_p([0.1], draws=0), "at least 1 draw"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
