"""pass@k, avg@k, maj@k against brute force over all subsets; the bootstrap against closed forms and by coverage."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from trl_credit.evaluation.estimators import (
    average_at_k,
    best_at_k,
    bootstrap_interval,
    majority_at_k,
    mean_interval,
    normal_form,
    pass_at_k,
    wilson_interval,
)


def test_pass_and_average_are_means_over_all_subsets():
    for n in range(1, 9):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))
                assert average_at_k(n, c, k) == pytest.approx(np.mean([np.mean(s) for s in subsets]), abs=1e-12)


def test_best_is_the_mean_over_all_draws_with_replacement():
    for n in range(1, 6):
        for c in range(n + 1):
            for k in range(1, n + 1):
                draws = [any(drawn) for drawn in product([True] * c + [False] * (n - c), repeat=k)]
                assert best_at_k(n, c, k) == pytest.approx(np.mean(draws), abs=1e-12)
                assert best_at_k(n, c, n) <= pass_at_k(n, c, n)
    with pytest.raises(ValueError, match="raise --samples"):
        best_at_k(4, 2, 5)


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(4000, 3, 2000) == float(1 - Fraction(comb(3997, 2000), comb(4000, 2000)))
    assert pass_at_k(5000, 1, 16) == 16 / 5000  # 1 − (1 − 16/5000) would lose digits
    assert pass_at_k(5000, 4985, 16) == 1.0 and pass_at_k(5000, 0, 5000) == 0.0


def test_pass_at_k_is_unbiased():
    # Σ_c Binomial(c; n, p) pass@k(n, c) = 1 − (1 − p)^k
    n, p = 12, 0.3
    for k in (1, 5, 12):
        mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def vote(answers: tuple, correct: tuple) -> Fraction:
    names = ["right" if c else a for a, c in zip(answers, correct, strict=True) if c or a is not None]
    votes = Counter(names)
    winners = [name for name, n in votes.items() if n == max(votes.values())]
    return Fraction("right" in winners, max(1, len(winners)))


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        (["1", "1", "2", "2", "3", None], {"1"}),
        (["1", "1/1", "2", "2", "3", None], {"1", "1/1"}),  # two spellings of the right answer vote together
        (["2", "2", "2", "3", "3", "1", "1"], {"1"}),
        ([None] * 4, set()),
        ([None, None, "4"], {"4"}),
        (["5"] * 5, {"5"}),
        (["1", "2", "3", "4", "5", "6", "7", "7"], {"7"}),
    ],
)
def test_majority_is_the_mean_over_all_subsets(answers, right):
    correct = [a in right for a in answers]
    for k in range(1, len(answers) + 1):
        chosen = list(combinations(range(len(answers)), k))
        votes = [vote(tuple(answers[i] for i in s), tuple(correct[i] for i in s)) for s in chosen]
        assert majority_at_k(answers, correct, k) == float(sum(votes) / len(chosen))


def test_majority_of_random_samples_against_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 10))
        answers = [None if a == 4 else str(a) for a in rng.integers(0, 5, n)]
        correct = [a == "0" for a in answers]
        k = int(rng.integers(1, n + 1))
        subsets = list(combinations(range(n), k))
        votes = [vote(tuple(answers[i] for i in s), tuple(correct[i] for i in s)) for s in subsets]
        assert majority_at_k(answers, correct, k) == float(sum(votes) / len(subsets))


def test_majority_by_hand():
    # of {right, a, b}: all tie for k = 3; a pair with the right one ties, so (½ + ½ + 0) / 3
    assert majority_at_k(["1", "a", "b"], [True, False, False], 3) == pytest.approx(1 / 3)
    assert majority_at_k(["1", "a", "b"], [True, False, False], 2) == pytest.approx(1 / 3)
    assert majority_at_k(["1", None, None], [True, False, False], 3) == 1.0
    # a right sample of which no answer could be read still votes
    assert majority_at_k([None, None, "a"], [True, True, False], 3) == 1.0
    assert majority_at_k(["a"] * 60 + ["1"] * 40, [False] * 60 + [True] * 40, 100) == 0.0


def test_what_votes_together():
    assert normal_form(" $\\left( 3,\\, \\dfrac{\\pi}{2} \\right)$.") == normal_form("(3,\\frac{\\pi}{2})")
    assert normal_form("x") != normal_form("X") and normal_form("\\rightarrow") == "\\rightarrow"


def test_bootstrap_of_two_problems_in_closed_form():
    # means of two draws from {0, 1}: 0, ½, 1 with chances ¼, ½, ¼
    assert bootstrap_interval([0.0, 1.0], level=0.95) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)


def test_bootstrap_quantiles_are_those_of_the_binomial():
    n, p = 40, 0.25
    low, high = bootstrap_interval([1.0] * 10 + [0.0] * 30, resamples=40_000, seed=1)
    below = np.cumsum([comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)])
    quantiles = [int(np.searchsorted(below, q)) / n for q in (0.025, 0.975)]
    assert [low, high] == quantiles


def test_bootstrap_covers_the_truth():
    rng = np.random.default_rng(0)
    runs, n = 400, 60
    hits = 0
    for run in range(runs):
        low, high = bootstrap_interval(rng.beta(2, 3, n), resamples=1000, seed=run)
        hits += low <= 0.4 <= high
    # 0.945 is what 60 problems give; five standard deviations of a binomial around it
    assert abs(hits / runs - 0.945) < 5 * (0.945 * 0.055 / runs) ** 0.5


def test_degenerate_intervals_and_seeds():
    assert bootstrap_interval([0.3]) == (0.3, 0.3)
    assert bootstrap_interval([0.1] * 7) == (0.1, 0.1)
    scores = np.random.default_rng(0).random(3000)
    assert bootstrap_interval(scores, seed=3) == bootstrap_interval(scores, seed=3)
    assert bootstrap_interval(scores, seed=3) != bootstrap_interval(scores, seed=4)


@pytest.mark.parametrize(("right", "n"), [(0, 24), (24, 24), (3, 10), (1, 1)])
def test_wilsons_interval_is_where_the_score_test_just_does_not_refuse(right, n):
    share, z = right / n, 1.959963984540054
    low, high = wilson_interval(share, n)
    assert 0 <= low <= share <= high <= 1 and high - low > 0.1
    for end in (low, high):  # |p̂ − p| = z √(p(1 − p)/n), but for the ends that are those of [0, 1]
        if end not in (0.0, 1.0):
            assert abs(share - end) == pytest.approx(z * (end * (1 - end) / n) ** 0.5, abs=1e-12)


def test_no_score_is_known_exactly():
    width = 1.959963984540054**2 / (24 + 1.959963984540054**2)  # z²/(n + z²)
    assert mean_interval([0.0] * 24) == (0.0, pytest.approx(width, abs=1e-12), "wilson")
    assert mean_interval([1.0] * 24) == (pytest.approx(1 - width, abs=1e-12), 1.0, "wilson")
    low, high, kind = mean_interval([0.25] * 8)  # 2 of 8 is 0.071 … 0.591
    assert (low, high, kind) == (pytest.approx(0.0715, abs=1e-3), pytest.approx(0.5907, abs=1e-3), "wilson")
    scores = [0.0, 1.0, 0.5]
    assert mean_interval(scores, seed=5) == (*bootstrap_interval(scores, seed=5), "bootstrap")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k(4, 1, 5), "k must be between 1 and the 4 samples"),
        (lambda: pass_at_k(4, 1, 0), "k must be between"),
        (lambda: pass_at_k(4, 5, 1), "cannot be 5 right samples of 4"),
        (lambda: average_at_k(4, 1, 5), "raise --samples"),
        (lambda: majority_at_k(["1"], [True], 2), "k must be between"),
        (lambda: majority_at_k(["1"], [True, False], 1), "one for each"),
        (lambda: bootstrap_interval([]), "finite scores"),
        (lambda: bootstrap_interval([0.5, float("nan")]), "finite scores"),
        (lambda: bootstrap_interval([0.5], level=1.0), "level must be in"),
        (lambda: wilson_interval(0.5, 4, level=0.0), "level must be in"),
        (lambda: wilson_interval(1.5, 4), r"share in \[0, 1\]"),
        (lambda: mean_interval([2.0, 2.0]), r"share in \[0, 1\]"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
