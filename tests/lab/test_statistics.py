"""Intervals, p-values and aggregates against closed forms, enumerations and scipy."""

from itertools import product
from math import comb

import numpy as np
import pytest
from scipy import stats

from trl_credit.lab import statistics
from trl_credit.lab.statistics import bootstrap_interval, holm, mean_interval, paired_difference, paired_t, sign_flip_p


NONE_OF_24 = 1.959963984540054**2 / (24 + 1.959963984540054**2)  # Wilson's upper end of 0 of 24


# Bootstrap and Wilson


def test_bootstrap_quantiles_are_those_of_the_binomial():
    n, p = 40, 0.25
    low, high = bootstrap_interval([1.0] * 10 + [0.0] * 30, resamples=40_000, seed=1)
    below = np.cumsum([comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)])
    assert [low, high] == [int(np.searchsorted(below, q)) / n for q in (0.025, 0.975)]
    scores = np.random.default_rng(0).random(3000)
    assert bootstrap_interval(scores, seed=3) == bootstrap_interval(scores, seed=3)
    assert bootstrap_interval(scores, seed=3) != bootstrap_interval(scores, seed=4)


def test_no_score_is_known_exactly():
    theirs = stats.binomtest(3, 10).proportion_ci(method="wilson")
    assert statistics.wilson_interval(0.3, 10) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert statistics.wilson_interval(1.0, 24) == (pytest.approx(1 - NONE_OF_24, abs=1e-12), 1.0)
    assert mean_interval([0.0] * 24) == (0.0, pytest.approx(NONE_OF_24, abs=1e-12), "wilson")
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
    assert sign_flip_p([0.0] * 24) == 1.0
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0  # sums to 0 except for rounding
    # 21 better and 9 worse by the same amount: McNemar's exact test
    exact = 2 * sum(comb(30, i) for i in range(21, 31)) / 2**30
    p = sign_flip_p([1.0] * 21 + [-1.0] * 9, draws=40_000)
    assert abs(p - exact) < 5 * (exact * (1 - exact) / 40_000) ** 0.5
    assert sign_flip_p([0.1] * 200, draws=999) == 1 / 1000  # never 0


def test_a_paired_difference():
    first, second = np.random.default_rng(5).integers(0, 5, (2, 40)) / 4
    result = paired_difference(first, second, seed=6)
    assert (result.low, result.high) == bootstrap_interval(second - first, seed=6)
    assert result.difference == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert result[5:] == tuple(int(n.sum()) for n in (second > first, second < first, second == first))
    back = paired_difference(second, first, seed=6)
    assert (back.difference, back.p) == (-result.difference, result.p)
    same = paired_difference([0.25] * 24, [0.25] * 24)
    assert same == (0.0, pytest.approx(-NONE_OF_24), pytest.approx(NONE_OF_24), "wilson", 1.0, 0, 0, 24)
    assert paired_difference([0.1 + 0.2] * 24, [0.3] * 24).same == 24  # rounding is no difference
    all_won = paired_difference([0.0] * 24, [1.0] * 24)
    assert all_won[1:4] == (pytest.approx(1 - 2 * NONE_OF_24), 1.0, "wilson")
    assert all_won.p == pytest.approx(2 / 2**20, abs=2e-5)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.3]) == [0.3] and holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


# t tests


def test_without_spread_there_is_no_t():
    assert paired_t([0.2]) == (0.2, None, None, None, 1)
    assert paired_t([0.1 + 0.2, 0.3, 0.3]) == (pytest.approx(0.3), None, None, None, 3)  # rounding is no spread
    assert statistics.welch_t([1.0], [2.0, 3.0]) == (1.5, None, None, None, 1)
    assert statistics.welch_t([1.0, 1.0], [2.0, 2.0]) == (1.0, None, None, None, 2)
    assert statistics.welch_t([1.0, 1.0], [2.0, 3.0]).p == pytest.approx(stats.ttest_1samp([1.0, 2.0], 0).pvalue)
