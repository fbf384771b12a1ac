"""Which rows are drawn, and in proportion to what."""

import itertools
import logging
import math

import numpy as np
from prompt_helpers import by_difficulty, in_turn


NAN = math.nan


# Draws in proportion to weights


def exact_shares(weights, count):
    """Probability of each row to be among `count` rows drawn one after the other: the sum over all orders."""
    shares = [0.0] * len(weights)
    for drawn in itertools.permutations(range(len(weights)), count):
        probability, left = 1.0, sum(weights)
        for row in drawn:
            probability *= weights[row] / left
            left -= weights[row]
        for row in drawn:
            shares[row] += probability
    return shares


def test_rows_are_drawn_in_proportion_to_their_weights():
    rates, draws, count = [0.5, 0.9, 0.0, NAN, 0.8], 6000, 3
    order = by_difficulty(5, prompt_floor=0.02)
    order.note(range(5), rates)
    weights = [0.25, 0.09, 0.02, 0.25, 0.16]  # a row without a rate counts as 1/2
    counts, first = np.zeros(5), np.zeros(5)
    for _ in range(draws):
        drawn = order.draw(count)
        assert len(set(drawn)) == count
        counts[drawn] += 1
        first[drawn[0]] += 1
    shares = np.array(exact_shares(weights, count))
    # five standard deviations
    assert np.all(np.abs(counts / draws - shares) < 5 * np.sqrt(shares * (1 - shares) / draws))
    alone = np.array(weights) / sum(weights)
    assert np.all(np.abs(first / draws - alone) < 5 * np.sqrt(alone * (1 - alone) / draws))
    assert np.max(np.abs(np.minimum(count * alone, 1.0) - shares)) > 0.1  # which is not in proportion to the weights


def test_a_rate_above_the_limit_retires_a_row_and_the_limit_itself_does_not():
    order = by_difficulty(4, retire_above=0.75)
    order.note([0, 1], [0.75, 0.7500001])
    drawn = {row for _ in range(60) for row in order.draw(2)}
    assert drawn == {0, 2, 3} and order.stats()["prompts_retired"] == 0.25
    order.note([1], [0.25])  # as after a copy of the row elsewhere in the batch
    assert 1 in {row for _ in range(60) for row in order.draw(2)}


def test_too_few_rows_with_weight_are_filled_up_once_said(caplog):
    order = by_difficulty(6, retire_above=0.5)
    order.note(range(5), [0.9, 1.0, 0.8, 0.7, 0.4])
    with caplog.at_level(logging.WARNING):
        draws = [order.draw(4) for _ in range(300)]
    assert all(set(drawn[:2]) == {4, 5} and len(set(drawn)) == 4 for drawn in draws)
    counts = [sum(row in drawn for drawn in draws) for row in range(4)]
    assert all(110 < n < 190 for n in counts), counts  # uniform, whatever their rates: 150 ± 9
    assert len(caplog.records) == 1
    assert set(order.draw(2, besides=[4, 5])) <= {0, 1, 2, 3}


def test_draws_depend_on_the_seed_and_on_their_number():
    first, again, other = (by_difficulty(50, seed=seed) for seed in (1, 1, 2))
    draws = [order.draw(5) for order in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]
    assert first.draw(5) == again.draw(5) != draws[0]


# The order of its own, for refills


def test_every_permutation_has_all_rows_and_they_differ():
    order = in_turn(10)
    epochs = [[row for _ in range(5) for row in order.draw(2)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[0] == np.random.default_rng([42, 0]).permutation(10).tolist()


def test_rows_of_the_batch_are_passed_over():
    order = in_turn(6, shuffle_dataset=False)
    assert order.draw(2, besides=[1, 3]) == [0, 2]
    assert order.draw(2, besides={4}) == [3, 5]
    assert order.draw(6) == [0, 1, 2, 3, 4, 5]
    # across the end of a permutation no row comes twice
    assert order.draw(4) == [0, 1, 2, 3] and order.draw(4) == [4, 5, 0, 1] and order.draw(6) == [2, 3, 4, 5, 0, 1]
