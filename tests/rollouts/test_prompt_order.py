"""Which rows are drawn, and in proportion to what; the file of pass rates."""

import itertools
import json
import logging
import math
from functools import cache, partial

import numpy as np
import pytest
from custom_functions import args_of

from trl_credit.rollouts.prompts import PROMPT_RATES_FILE, PromptOrder, prompt_digest, read_rates
from trl_credit.runs.checkpoints import read_state, write_state


NAN = math.nan
make_config = cache(args_of)


def prompt(row):
    return f"prompt {row}"


def by_difficulty(rows=20, prompt_of=prompt, **knobs):
    return PromptOrder(make_config(prompt_sampler="difficulty", **knobs), rows=rows, prompt_of=prompt_of)


def in_turn(rows=20, prompt_of=prompt, **knobs):
    return PromptOrder(make_config(groups="refill", **knobs), rows=rows, prompt_of=prompt_of)


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


# `prompt_rates.jsonl`, resumes with it and starts from it; files that are refused


def test_the_file_has_a_line_for_each_row_that_was_drawn_or_noted(tmp_path):
    order = by_difficulty(9, prompt_of=lambda row: [{"role": "user", "content": f"é {row}"}])
    order.note([7, 3], [1 / 3, NAN])
    order.note([7], [0.1 + 0.2])
    (drawn,) = order.draw(1, besides=[3, 7])
    order.write(tmp_path / "made" / "here.jsonl")
    lines = [*map(json.loads, (tmp_path / "made" / "here.jsonl").read_text().splitlines())]
    expected = {7: (0.1 + 0.2, 2), 3: (None, 1), drawn: (None, 0)}
    assert {line["row"]: (line["rate"], line["groups"]) for line in lines} == expected
    assert [line["row"] for line in lines] == sorted(expected)
    assert lines[0].keys() == {"row", "prompt", "rate", "groups"}
    digests = {prompt_digest([{"content": f"é {n}", "role": "user"}]) for n in expected}
    assert {line["prompt"] for line in lines} == digests
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["here.jsonl"]


def test_a_later_run_finds_rows_by_their_prompts(tmp_path, caplog):
    earlier = by_difficulty(6, retire_above=0.6)
    earlier.note([0, 2, 4], [0.1, 1.0, 1 / 3])
    earlier.note([1, 3], [NAN, NAN])
    earlier.write(tmp_path / "rates.jsonl")
    prompts = ["prompt 4", "new", "prompt 2", "prompt 4", "prompt 1"]  # reordered, fewer, one twice
    knobs = {"retire_above": 0.6, "prompt_rates": str(tmp_path / "rates.jsonl")}
    with caplog.at_level(logging.INFO):
        later = by_difficulty(5, prompts.__getitem__, **knobs)
    assert "3 of 5 rows of the data start with a pass rate" in caplog.text
    assert later.stats() == {"prompts_seen": 0.0, "prompts_retired": 0.2, "pass_rate": (2 / 3 + 1.0) / 3}
    assert {row for _ in range(60) for row in later.draw(2)} == {0, 1, 3, 4}
    same = by_difficulty(5, prompts.__getitem__, retire_above=0.6)
    same.note([0, 2, 3], [1 / 3, 1.0, 1 / 3])
    again = by_difficulty(5, prompts.__getitem__, **knobs)
    assert [again.draw(3) for _ in range(5)] == [same.draw(3) for _ in range(5)]
    # a rate of an earlier run has no group of this one
    by_difficulty(5, prompts.__getitem__, **knobs).write(tmp_path / "new.jsonl")
    rates = [(rate.row, rate.rate, rate.sampled) for rate in read_rates(tmp_path / "new.jsonl")]
    assert rates == [(0, 1 / 3, False), (2, 1.0, False), (3, 1 / 3, False)]


GOOD = {"row": 1, "prompt": prompt_digest(prompt(1)), "rate": 0.5, "groups": 1}


@pytest.mark.parametrize(
    "line",
    ["{", "[1, 2]", "[" * 100_000, json.dumps({"row": 1}), *(json.dumps(GOOD | {"rate": x}) for x in (1.5, NAN, "1"))],
    ids=["no JSON", "a list", "deep", "no rate", "above 1", "NaN", "text"],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "rates.jsonl"
    path.write_text("\n".join([json.dumps(GOOD), line, json.dumps(GOOD)]))
    with pytest.raises(ValueError, match="^prompt_rates=.*line 2 is damaged"):
        by_difficulty(3, prompt_rates=str(path))


def test_a_file_without_a_rate_of_this_data_is_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    for line in (GOOD | {"rate": None}, GOOD | {"prompt": "0" * 16}):
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(ValueError, match="^prompt_rates=.*none of its pass rates"):
            by_difficulty(3, prompt_rates=str(path))


# State


def resumed(order, make, folder):
    """What a resume makes of an order, through the files of a checkpoint."""
    folder.mkdir(exist_ok=True)
    write_state(folder, {"parts": {order.name: order.state_dict(folder)}})
    resumed_order = make()
    resumed_order.draw(2)  # what it knew is replaced
    resumed_order.note([0, 3], [0.0, 1.0])
    resumed_order.load_state_dict(read_state(folder, needed={order.name: order.setting})["parts"]["prompts"], folder)
    return resumed_order


def step(order, number):
    """A draw beside rows of the batch, and rates of some of its rows."""
    rows = order.draw(3, besides={number, number + 4})
    order.note(rows[:2], [[0.0, 0.9, NAN][number % 3], number / 5])
    return rows


ORDERS = [
    (in_turn, {"seed": 3}),
    (in_turn, {"shuffle_dataset": False}),
    (by_difficulty, {"seed": 3, "retire_above": 0.9}),
]


@pytest.mark.parametrize(("order", "knobs"), ORDERS, ids=["data", "data in order", "difficulty"])
def test_a_resumed_order_is_the_uninterrupted_one_from_every_point(order, knobs, tmp_path):
    make = partial(order, 12, **knobs)
    whole, second = make(), make()  # two processes
    expected = [step(whole, number) for number in range(6)]
    assert [step(second, number) for number in range(6)] == expected
    whole.write(tmp_path / "whole.jsonl")
    for k in range(7):
        begun = make()
        for number in range(k):
            step(begun, number)
        rest = resumed(begun, make, tmp_path / "checkpoint")
        assert rest.stats() == begun.stats()
        assert [step(rest, number) for number in range(k, 6)] == expected[k:]
        rest.write(tmp_path / "rest.jsonl")
        assert (tmp_path / "rest.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    order, other, same = (by_difficulty(8) for _ in range(3))
    order.note(order.draw(3), [0.25, 0.5, 1.0])
    state, file = order.state_dict(tmp_path), tmp_path / PROMPT_RATES_FILE
    with pytest.raises(ValueError, match="of 8 rows, and the data set has 9"):
        by_difficulty(9).load_state_dict(state, tmp_path)
    file.write_text(file.read_text().replace("0.25", "0.35"))
    for words in ("prompt_rates.jsonl is not what", "prompt_rates.jsonl cannot be read"):
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(state, tmp_path)
        file.unlink(missing_ok=True)
    assert other.stats() == same.stats() and other.draw(6) == same.draw(6)
