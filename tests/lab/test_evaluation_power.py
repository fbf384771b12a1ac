"""How many problems and samples a difference needs: variances against enumeration, power by simulation."""

from itertools import product

import numpy as np
import pytest

from trl_credit.lab.evaluation.power import Spread, needed, needed_problems, needed_samples
from trl_credit.lab.evaluation.scores import pass_at_k
from trl_credit.lab.statistics import sign_flip_p


CASES = [(True, True), (True, True), (False, False), (True, False), (False, True), (False, False), (False, True)]


def every_pattern(n: int) -> tuple[list[list[bool]], list[list[bool]]]:
    """A problem for each outcome of n pairs of samples, all equally likely."""
    patterns = list(product(CASES, repeat=n))
    return [[a for a, _ in p] for p in patterns], [[b for _, b in p] for p in patterns]


def difference_of(first: list[list[bool]], second: list[list[bool]], k: int) -> np.ndarray:
    return np.array(
        [pass_at_k(len(b), sum(b), k) - pass_at_k(len(a), sum(a), k) for a, b in zip(first, second, strict=True)]
    )


@pytest.mark.parametrize("k", [1, 2])
def test_the_variance_within_problems_is_exact(k):
    # over all equally likely patterns, the mean of the estimates is the estimated variance
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


def simulated(rng: np.random.Generator, problems: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts of two models. The second is better by 0.1: by −0.05 or 0.25 on each problem."""
    chance = rng.uniform(0.2, 0.6, problems)[:, None]
    other = chance + 0.1 + rng.choice([-0.15, 0.15], problems)[:, None]
    return tuple(rng.random((problems, n)) < c for c in (chance, other))


def test_the_needed_numbers_have_the_requested_power():
    rng = np.random.default_rng(8)
    spread = Spread(*simulated(rng, 20_000, 4), 1)
    # 0.0225, and (p(1 − p) + q(1 − q)) / n = 0.4342 / n
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
        assert abs(found / runs - 0.8) < 4 * (0.8 * 0.2 / runs) ** 0.5 + 0.01, (count, n)


def test_no_number_of_samples_compensates_for_few_problems():
    spread = Spread(*simulated(np.random.default_rng(9), 2000, 4), 1)
    assert needed_samples(0.1, spread, 10) == float("inf")
    assert needed_samples(0.0, spread, 10) is None and needed_problems(0.0, 0.1) is None
    assert needed(0.3, [0.3], None) == (None, None)  # one problem does not vary
    assert needed(0.5, [0.5, 0.5], None) == (2, None)


def test_too_few_samples_or_problems_are_refused():
    with pytest.raises(ValueError, match="needs 2 samples of each of two problems"):
        Spread([[True]] * 3, [[True]] * 3, 1)
    with pytest.raises(ValueError, match="of two problems"):
        Spread([[True] * 4], [[True] * 4], 1)
