"""Aggregates and intervals of a comparison, against closed forms and enumerations."""

import itertools

import numpy as np
import pytest

from trl_credit.comparison.statistics import (
    FALSE_ALARMS,
    bootstrap_interval,
    false_alarm,
    interquartile_mean,
    overlap,
    probability_of_improvement,
)


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (3, 1), (4, 1), (5, 1), (7, 2), (10, 3)])
def test_interquartile_mean_leaves_out_a_quarter_at_each_end(runs, tasks):
    scores = np.random.default_rng(0).normal(size=(2, runs, tasks))
    found = interquartile_mean(scores)
    for one, value in zip(scores, found, strict=True):
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


def test_the_interval_is_that_of_all_draws_of_one_task():
    scores = np.array([[0.1], [0.5], [0.6], [0.95]])
    every = [interquartile_mean(scores[list(draw)]) for draw in itertools.product(range(4), repeat=4)]
    assert bootstrap_interval(interquartile_mean, scores) == pytest.approx(quantiles(every), abs=0.02)


def test_runs_are_drawn_within_each_task():
    scores = np.array([[0.1, 10.0], [0.5, 30.0], [0.6, 20.0]])
    every = [
        interquartile_mean(np.stack([scores[list(one), 0], scores[list(other), 1]], axis=1))
        for one in itertools.product(range(3), repeat=3)
        for other in itertools.product(range(3), repeat=3)
    ]
    found = bootstrap_interval(interquartile_mean, scores)
    assert found == pytest.approx(quantiles(every), abs=0.2)
    whole_runs = [interquartile_mean(scores[list(draw)]) for draw in itertools.product(range(3), repeat=3)]
    assert quantiles(whole_runs) != pytest.approx(quantiles(every), abs=0.2)  # what an unstratified one would say


def test_the_interval_of_improvement_draws_both_sides():
    x, y = np.array([[1.0], [3.0], [5.0]]), np.array([[2.0], [2.5], [4.0]])
    draws = list(itertools.product(range(3), repeat=3))
    every = [float(probability_of_improvement(x[list(a)], y[list(b)])) for a in draws for b in draws]
    found = bootstrap_interval(probability_of_improvement, x, y)
    assert found == pytest.approx(quantiles(every), abs=0.03)


def test_too_few_runs_have_no_interval_and_bad_scores_are_refused():
    three, two = np.ones((3, 1)), np.ones((2, 1))
    assert bootstrap_interval(interquartile_mean, two) is None
    assert bootstrap_interval(probability_of_improvement, three, two) is None
    assert bootstrap_interval(interquartile_mean, three) == (1.0, 1.0)
    for bad in (np.ones(3), np.array([[1.0], [np.nan], [2.0]])):
        with pytest.raises(ValueError, match=r"finite and of the shape \(runs, tasks\)"):
            bootstrap_interval(interquartile_mean, bad)


def test_overlap():
    assert overlap((0, 1), (1, 2)) and overlap((0, 3), (1, 2)) and not overlap((0, 1), (1.1, 2))
    assert overlap((1, 2), (0, 1)) and not overlap((1.1, 2), (0, 1))


@pytest.mark.parametrize("runs", FALSE_ALARMS)
def test_false_alarms_by_simulation(runs):
    rng, n, alarms = np.random.default_rng(2), 500, 0
    for seed, (a, b) in enumerate(rng.normal(size=(n, 2, runs, 1))):
        one, other = (bootstrap_interval(interquartile_mean, s, resamples=1000, seed=seed) for s in (a, b))
        alarms += not overlap(one, other)
    assert alarms / n == pytest.approx(false_alarm(runs), abs=0.03)


def test_false_alarms_of_other_numbers_are_those_of_fewer_runs():
    assert [false_alarm(n) for n in (2, 3, 4, 5, 6, 50)] == [0.10, 0.10, 0.03, 0.02, 0.01, 0.01]
