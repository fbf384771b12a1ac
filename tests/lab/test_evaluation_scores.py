"""pass@k, best@k, avg@k and maj@k against brute force over all subsets."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from trl_credit.lab.evaluation.scores import average_at_k, best_at_k, majority_at_k, normal_form, pass_at_k


def test_scores_are_means_over_all_subsets_or_draws():
    for n in range(1, 7):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))
                assert average_at_k(n, c, k) == pytest.approx(np.mean([np.mean(s) for s in subsets]), abs=1e-12)
                draws = [any(drawn) for drawn in product(samples, repeat=min(k, 4))]
                assert best_at_k(n, c, min(k, 4)) == pytest.approx(np.mean(draws), abs=1e-12)


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(4000, 3, 2000) == float(1 - Fraction(comb(3997, 2000), comb(4000, 2000)))
    assert pass_at_k(5000, 1, 16) == 16 / 5000  # 1 − (1 − 16/5000) loses digits
    for k in (0, 5):
        for score in (pass_at_k, average_at_k, best_at_k):
            with pytest.raises(ValueError, match="k must be between 1 and the 4 samples"):
                score(4, 1, k)


def vote(answers: list, correct: list) -> Fraction:
    names = ["right" if c else a for a, c in zip(answers, correct, strict=True) if c or a is not None]
    votes = Counter(names)
    winners = [name for name, n in votes.items() if n == max(votes.values())]
    return Fraction("right" in winners, max(1, len(winners)))


def test_majority_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    cases = [([None if a == 4 else str(a) for a in rng.integers(0, 5, rng.integers(2, 10))], {"0"}) for _ in range(60)]
    cases.append((["1", "1/1", "2", "2", "3", None], {"1", "1/1"}))  # spellings of the right answer vote together
    for answers, right in cases:
        correct = [a in right for a in answers]
        for k in range(1, len(answers) + 1):
            subsets = list(combinations(range(len(answers)), k))
            votes = [vote([answers[i] for i in s], [correct[i] for i in s]) for s in subsets]
            assert majority_at_k(answers, correct, k) == float(sum(votes) / len(subsets))
    # a right sample without a readable answer still votes
    assert majority_at_k([None, None, "a"], [True, True, False], 3) == 1.0


def test_what_votes_together():
    assert normal_form(" $\\left( 3,\\, \\dfrac{\\pi}{2} \\right)$.") == normal_form("(3,\\frac{\\pi}{2})")
    assert normal_form("x") != normal_form("X") and normal_form("\\rightarrow") == "\\rightarrow"
