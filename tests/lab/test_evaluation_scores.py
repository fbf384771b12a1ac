"""pass@k, best@k, avg@k and maj@k against brute force over all subsets."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from trl_credit.lab.evaluation.scores import average_at_k, best_at_k, majority_at_k, normal_form, pass_at_k


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


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(4000, 3, 2000) == float(1 - Fraction(comb(3997, 2000), comb(4000, 2000)))
    assert pass_at_k(5000, 1, 16) == 16 / 5000  # 1 − (1 − 16/5000) loses digits
    assert pass_at_k(5000, 4985, 16) == 1.0 and pass_at_k(5000, 0, 5000) == 0.0


def vote(answers: tuple, correct: tuple) -> Fraction:
    names = ["right" if c else a for a, c in zip(answers, correct, strict=True) if c or a is not None]
    votes = Counter(names)
    winners = [name for name, n in votes.items() if n == max(votes.values())]
    return Fraction("right" in winners, max(1, len(winners)))


def random_votes() -> list[tuple[list, set]]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 10, 60)
    return [([None if a == 4 else str(a) for a in rng.integers(0, 5, n)], {"0"}) for n in sizes]


@pytest.mark.parametrize(
    "cases",
    [
        [(["1", "1", "2", "2", "3", None], {"1"})],
        [(["1", "1/1", "2", "2", "3", None], {"1", "1/1"})],  # two spellings of the right answer vote together
        [(["2", "2", "2", "3", "3", "1", "1"], {"1"})],
        [([None] * 4, set())],
        [([None, None, "4"], {"4"})],
        [(["5"] * 5, {"5"})],
        [(["1", "2", "3", "4", "5", "6", "7", "7"], {"7"})],
        random_votes(),
    ],
)
def test_majority_is_the_mean_over_all_subsets(cases):
    for answers, right in cases:
        correct = [a in right for a in answers]
        for k in range(1, len(answers) + 1):
            subsets = list(combinations(range(len(answers)), k))
            votes = [vote(tuple(answers[i] for i in s), tuple(correct[i] for i in s)) for s in subsets]
            assert majority_at_k(answers, correct, k) == float(sum(votes) / len(subsets))


def test_majority_by_hand():
    # a right sample without a readable answer still votes
    assert majority_at_k([None, None, "a"], [True, True, False], 3) == 1.0
    assert majority_at_k(["a"] * 60 + ["1"] * 40, [False] * 60 + [True] * 40, 100) == 0.0


def test_what_votes_together():
    assert normal_form(" $\\left( 3,\\, \\dfrac{\\pi}{2} \\right)$.") == normal_form("(3,\\frac{\\pi}{2})")
    assert normal_form("x") != normal_form("X") and normal_form("\\rightarrow") == "\\rightarrow"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k(4, 1, 5), "k must be between 1 and the 4 samples"),
        (lambda: pass_at_k(4, 1, 0), "k must be between"),
        (lambda: average_at_k(4, 1, 5), "raise --samples"),
        (lambda: best_at_k(4, 2, 5), "raise --samples"),
        (lambda: majority_at_k(["1"], [True], 2), "k must be between"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
