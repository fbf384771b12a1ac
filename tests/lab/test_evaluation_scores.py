"""pass@k, best@k, avg@k and maj@k against brute force over all subsets."""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from trl_credit.lab.evaluation.scores import normal_form, pass_at_k, problem_score


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


MAJORITIES = {
    "right has the most": (["1", "1/1", "2", None], [True, True, False, False], 1.0),
    "a rival has the most": (["1", "2", "$2$"], [True, False, False], 0.0),
    "three answers tie": (["1", "1", "2", "2", "3", "3", "4"], [True, True, *[False] * 5], 1 / 3),
    "right without a readable answer": ([None, None, "a"], [True, True, False], 1.0),
    "nobody votes": ([None, None], [False, False], 0.0),
}


@pytest.mark.parametrize(("answers", "correct", "score"), MAJORITIES.values(), ids=MAJORITIES)
def test_majority(answers, correct, score):
    samples = [{"answer": answer, "correct": c} for answer, c in zip(answers, correct, strict=True)]
    assert problem_score(f"maj@{len(answers)}", {"samples": samples}) == score
    with pytest.raises(ValueError, match="maj@1 needs 1 samples"):
        problem_score("maj@1", {"samples": samples})


def test_what_votes_together():
    assert normal_form(" $\\left( 3,\\, \\dfrac{\\pi}{2} \\right)$.") == normal_form("(3,\\frac{\\pi}{2})")
    assert normal_form("x") != normal_form("X") and normal_form("\\rightarrow") == "\\rightarrow"
