"""pass@k, best@k, avg@k and maj@k against brute force over all subsets."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from trl_credit.lab.evaluation.scores import majority_at_k, normal_form, pass_at_k, problem_score


def test_scores_are_means_over_all_subsets_or_draws():
    for n in range(1, 7):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            line = {"samples": [{"correct": right} for right in samples]}
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                draws = [any(drawn) for drawn in product(samples, repeat=min(k, 4))]
                assert problem_score(f"pass@{k}", line) == float(Fraction(sum(map(any, subsets)), len(subsets)))
                means = np.mean([np.mean(s) for s in subsets]), np.mean(draws)
                scores = problem_score(f"avg@{k}", line), problem_score(f"best@{min(k, 4)}", line)
                assert scores == pytest.approx(means, abs=1e-12)
    with pytest.raises(ValueError, match="pass@7 needs 7 samples"):
        problem_score("pass@7", line)


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(4000, 3, 2000) == float(1 - Fraction(comb(3997, 2000), comb(4000, 2000)))
    assert pass_at_k(5000, 1, 16) == 16 / 5000  # 1 − (1 − 16/5000) loses digits


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
