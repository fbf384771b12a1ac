"""Which rows are drawn, in proportion to what; a resumed order is the uninterrupted one; files that are refused."""

import itertools
import json
import logging
import math
import random
from functools import cache

import numpy as np
import pytest
from custom_functions import args_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_credit.rollouts.prompt_order import PromptOrder
from trl_credit.rollouts.prompt_rates import PROMPT_RATES_FILE, prompt_digest, read_rates
from trl_credit.runs.checkpoints import read_state, write_state


NAN = math.nan
make_config = cache(args_of)


def prompt(row):
    return f"prompt {row}"


def by_difficulty(rows=20, prompt_of=prompt, **knobs):
    return PromptOrder(make_config(prompt_sampler="difficulty", **knobs), rows=rows, prompt_of=prompt_of)


def in_turn(rows=20, **knobs):
    return PromptOrder(make_config(groups="refill", **knobs), rows=rows, prompt_of=prompt)


def never_read(row):
    raise AssertionError(f"the prompt of row {row} was read")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def test_rows_of_the_batch_are_not_drawn_again_and_leave_the_shares_of_the_others():
    order = by_difficulty(4)
    order.note([1, 2, 3], [0.5, 0.9, 0.9])
    firsts = [order.draw(1, besides=[0])[0] for _ in range(3000)]
    shares = [firsts.count(row) / 3000 for row in range(4)]
    assert shares[0] == 0.0 and abs(shares[1] - 0.25 / 0.43) < 0.05 and abs(shares[2] - 0.09 / 0.43) < 0.05


def test_a_rate_above_the_limit_retires_a_row_and_the_limit_itself_does_not():
    order = by_difficulty(4, retire_above=0.75)
    order.note([0, 1], [0.75, 0.7500001])
    drawn = {row for _ in range(60) for row in order.draw(2)}
    assert drawn == {0, 2, 3} and order.stats()["prompts_retired"] == 0.25
    order.note([1], [0.25])  # as after a copy of the row elsewhere in the batch
    assert 1 in {row for _ in range(60) for row in order.draw(2)}


def test_an_unseen_row_is_not_retired_by_its_assumed_rate():
    assert sorted(by_difficulty(3, retire_above=0.1).draw(3)) == [0, 1, 2]


def test_without_a_floor_rows_that_were_always_or_never_solved_are_not_drawn_again():
    order = by_difficulty(6, prompt_floor=0.0)
    order.note([0, 1, 2], [0.0, 1.0, 0.5])
    assert {row for _ in range(40) for row in order.draw(3)} == {2, 3, 4, 5}
    with_floor = by_difficulty(6)
    with_floor.note([0, 1, 2], [0.0, 1.0, 0.5])
    assert {row for _ in range(80) for row in with_floor.draw(3)} == set(range(6))


def test_too_few_rows_with_weight_are_filled_up_once_said(caplog):
    order = by_difficulty(6, retire_above=0.5)
    order.note(range(5), [0.9, 1.0, 0.8, 0.7, 0.4])
    with caplog.at_level(logging.WARNING):
        draws = [order.draw(4) for _ in range(300)]
    assert all(set(drawn[:2]) == {4, 5} and len(set(drawn)) == 4 for drawn in draws)
    counts = [sum(row in drawn for drawn in draws) for row in range(4)]
    assert all(110 < n < 190 for n in counts), counts  # uniform, whatever their rates: 150 ± 9
    (said,) = [record.getMessage() for record in caplog.records]
    assert "retire_above=0.5" in said and "the other 2 were drawn" in said and "give more rows" in said
    assert set(order.draw(2, besides=[4, 5])) <= {0, 1, 2, 3}


def test_a_tiny_weight_is_still_before_none():
    order = by_difficulty(3, prompt_floor=0.0)
    order.note([0, 1, 2], [5e-324, 0.0, 0.5])
    assert all(set(order.draw(2)) == {0, 2} for _ in range(20))


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


def test_unshuffled_rows_come_in_the_order_of_the_data():
    order = in_turn(5, shuffle_dataset=False)
    assert [order.draw(2) for _ in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_rows_of_the_batch_are_passed_over():
    order = in_turn(6, shuffle_dataset=False)
    assert order.draw(2, besides=[1, 3]) == [0, 2]
    assert order.draw(2, besides={4}) == [3, 5]
    assert order.draw(6) == [0, 1, 2, 3, 4, 5]
    # across the end of a permutation no row comes twice
    assert order.draw(4) == [0, 1, 2, 3] and order.draw(4) == [4, 5, 0, 1] and order.draw(6) == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize("make", [by_difficulty, in_turn])
def test_too_few_rows_are_refused_before_anything_changes(make):
    order, other = make(8), make(8)
    named = "prompt_sampler='difficulty'" if make is by_difficulty else "groups='refill'"
    with pytest.raises(ValueError, match=f"^{named} needs 4 more prompts beside 5 .* 8 rows: give more rows, or lower"):
        order.draw(4, besides=[0, 1, 2, 3, 4, 4])
    assert sorted(order.draw(3, besides=[0, 1, 2, 3, 4])) == [5, 6, 7] == sorted(other.draw(3, besides=range(5)))
    assert order.draw(8) == other.draw(8) and order.draw(0, besides=range(8)) == []
    for wrong in (-1, 8):
        with pytest.raises(ValueError, match=f"no row {wrong} in a data set of 8 rows"):
            order.draw(1, besides=[wrong])
    with pytest.raises(ValueError, match="no rows"):
        make(0)


def test_no_global_generator_is_read_and_none_moves():
    def drawn(seed):
        random.seed(seed)
        np.random.seed(seed)
        before = random.getstate(), np.random.get_state()[1].tolist()
        found = [make(30).draw(7) for make in (by_difficulty, in_turn)]
        assert before == (random.getstate(), np.random.get_state()[1].tolist())
        return found

    assert drawn(0) == drawn(1)


# Pass rates and their file


def test_rates_are_kept_and_what_is_none_is_refused_as_a_whole():
    order = by_difficulty(4)
    assert order.stats() == {"prompts_seen": 0.0, "prompts_retired": 0.0}
    order.note([0, 1], [0.25, NAN])
    order.note([0, 0], [0.75, NAN])
    before = order.stats()
    assert before == {"prompts_seen": 0.5, "prompts_retired": 0.0, "pass_rate": 0.75}
    for rows, rates, words in (
        ([2, 4], [0.5, 0.5], "no row 4"),
        ([2, 3], [0.5, 1.5], "1.5 is not in .0, 1.: set reward_range"),
        ([2, 3], [0.5, -math.inf], "-inf is not"),
        ([2, 3], [0.5], "2 rows and 1 rates"),
    ):
        with pytest.raises(ValueError, match=words):
            order.note(rows, rates)
    assert order.stats() == before


def test_the_file_has_a_line_for_each_row_that_was_drawn_or_noted(tmp_path):
    order = by_difficulty(9, prompt_of=lambda row: [{"role": "user", "content": f"é {row}"}])
    order.note([7, 3], [1 / 3, NAN])
    order.note([7], [0.1 + 0.2])
    (drawn,) = order.draw(1, besides=[3, 7])
    order.write(tmp_path / "made" / "here.jsonl")
    lines = lines_of(tmp_path / "made" / "here.jsonl")
    expected = {7: (0.1 + 0.2, 2), 3: (None, 1), drawn: (None, 0)}
    assert {line["row"]: (line["rate"], line["groups"]) for line in lines} == expected
    assert [line["row"] for line in lines] == sorted(expected)
    assert lines[0].keys() == {"row", "prompt", "rate", "groups"}
    assert {line["prompt"] for line in lines} == {
        prompt_digest([{"content": f"é {n}", "role": "user"}]) for n in expected
    }
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["here.jsonl"]


def test_prompts_are_read_only_for_the_file():
    order = by_difficulty(50, prompt_of=never_read)
    order.note(order.draw(5), [0.5] * 5)
    order.stats()
    with pytest.raises(AssertionError, match="was read"):
        order.write("/dev/null")


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
    assert [(x.row, x.rate, x.sampled) for x in read_rates(tmp_path / "new.jsonl")] == [
        (0, 1 / 3, False),
        (2, 1.0, False),
        (3, 1 / 3, False),
    ]


def test_the_last_line_of_a_prompt_wins_and_one_without_a_rate_does_not_count(tmp_path):
    path, digest = tmp_path / "rates.jsonl", prompt_digest(prompt(1))
    lines = [{"row": row, "prompt": digest, "rate": rate, "groups": 1} for row, rate in ((5, 1), (6, 0.25), (7, None))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert by_difficulty(3, prompt_rates=str(path)).stats()["pass_rate"] == 0.25


GOOD = {"row": 1, "prompt": prompt_digest(prompt(1)), "rate": 0.5, "groups": 1}
DAMAGED = {
    "no JSON": "{",
    "cut off": json.dumps(GOOD)[:-9],
    "blank": "",
    "a list": "[1, 2]",
    "a number": "5",
    "null": "null",
    "deep": "[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "no rate": json.dumps({key: GOOD[key] for key in ("row", "prompt", "groups")}),
    **{
        f"{key}={value}": json.dumps(GOOD | {key: value})
        for key, values in {
            "rate": (1.0000001, -0.1, NAN, math.inf, True, "0.5", [0.5], 10**400),
            "row": (-1, 10**12, 2**70, True, 1.0, "1", None),
            "groups": (-1, 10**12, False, None),
            "prompt": ("", "abc", "g" * 16, 5, None, "<b>Who is right?</b>"),
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=[name[:30] for name in DAMAGED])
def test_a_damaged_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "rates.jsonl"
    content = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + content + b"\n" + json.dumps(GOOD).encode() + b"\n")
    with pytest.raises(
        ValueError, match=r"^prompt_rates=.* \(line 2 is damaged \(.*name the prompt_rates.jsonl of a run"
    ):
        by_difficulty(3, prompt_rates=str(path))


def test_a_file_without_a_rate_of_this_data_is_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    for lines, many in (([], 0), ([GOOD | {"rate": None}], 0), ([GOOD | {"prompt": "0" * 16}], 1)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(
            ValueError, match=f"^prompt_rates=.*none of its {many} pass rates .* 3 prompts.*leave it out"
        ):
            by_difficulty(3, prompt_rates=str(path))


def test_a_file_that_vanishes_before_training_is_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    config = args_of(prompt_sampler="difficulty", prompt_rates=str(path))
    path.unlink()
    with pytest.raises(ValueError, match="^prompt_rates=.*cannot be read.*leave it out"):
        PromptOrder(config, rows=3, prompt_of=prompt)


# State


def resumed(order, make, folder):
    """What a resume makes of an order, through the files of a checkpoint."""
    folder.mkdir(exist_ok=True)
    write_state(folder, {"parts": {order.name: order.state_dict(folder)}})
    found = make()
    found.draw(2)  # what it knew is replaced
    found.note([0, 3], [0.0, 1.0])
    found.load_state_dict(read_state(folder, needed={order.name: order.setting})["parts"]["prompts"], folder)
    return found


def step(order, action):
    count, besides, rates = action
    drawn = order.draw(count, besides=besides)
    order.note(drawn[: len(rates)], rates[: len(drawn)])
    return drawn


RATE = st.one_of(st.floats(0.0, 1.0), st.just(NAN))
ACTIONS = st.lists(
    st.tuples(st.integers(0, 6), st.sets(st.integers(0, 11), max_size=6), st.lists(RATE, max_size=6)), max_size=6
)
MAKERS = {
    "data": lambda: in_turn(12, seed=3),
    "data in order": lambda: in_turn(12, shuffle_dataset=False),
    "difficulty": lambda: by_difficulty(12, seed=3, retire_above=0.9),
    "without floor": lambda: by_difficulty(12, prompt_floor=0.0),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_resumed_order_is_the_uninterrupted_one_from_every_point(make, tmp_path):
    @settings(max_examples=40)
    @given(ACTIONS)
    def check(actions):
        whole, second = make(), make()  # two processes
        expected = [step(whole, action) for action in actions]
        assert [step(second, action) for action in actions] == expected
        whole.write(tmp_path / "whole.jsonl")
        for k in range(len(actions) + 1):
            begun = make()
            for action in actions[:k]:
                step(begun, action)
            rest = resumed(begun, make, tmp_path / "checkpoint")
            assert rest.stats() == begun.stats()
            assert [step(rest, action) for action in actions[k:]] == expected[k:]
            rest.write(tmp_path / "rest.jsonl")
            assert (tmp_path / "rest.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
            assert rest.draw(9) == _after(make, actions)

    def _after(make, actions):
        order = make()
        for action in actions:
            step(order, action)
        return order.draw(9)

    check()


def test_a_resume_takes_the_rates_of_the_checkpoint_and_not_those_of_prompt_rates(tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    order = by_difficulty(4, prompt_rates=str(path))
    order.note([2], [0.125])
    order.state_dict(tmp_path)
    state = order.state_dict(tmp_path)
    path.write_text(json.dumps(GOOD | {"prompt": prompt_digest(prompt(3)), "rate": 1.0}) + "\n")
    other = by_difficulty(4, prompt_rates=str(path))
    other.load_state_dict(state, tmp_path)
    assert other.stats() == order.stats() and other.stats()["pass_rate"] == (0.5 + 0.125) / 2
    assert [other.draw(2) for _ in range(9)] == [order.draw(2) for _ in range(9)]


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    order = by_difficulty(8)
    order.note(order.draw(3), [0.25, 0.5, 1.0])
    state, file = order.state_dict(tmp_path), tmp_path / PROMPT_RATES_FILE
    content = file.read_text()
    with pytest.raises(ValueError, match="of 8 rows, and the data set has 9"):
        by_difficulty(9).load_state_dict(state, tmp_path)

    def refuses(words, **changes):
        other, same = by_difficulty(8), by_difficulty(8)
        for one in (other, same):
            one.note([7], [0.75])
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(state | changes, tmp_path)
        assert other.stats() == same.stats() and other.draw(6) == same.draw(6)

    for name in ("draws", "epoch", "position"):
        for value in (-1, 1.0, True, "1", None):
            refuses("draws, epoch and position are", **{name: value})
    refuses("draws, epoch and position are", position=9)
    file.write_text(content.replace("0.25", "0.35"))
    refuses("is not what the checkpoint was written with")
    file.unlink()
    refuses("prompt_rates.jsonl cannot be read")
    file.write_text(content)
    order.load_state_dict(state, tmp_path)


def test_a_million_rows():
    order = by_difficulty(1_000_000, never_read)
    drawn = order.draw(512)
    order.note(drawn, [0.5] * 512)
    assert len(set(drawn) | set(order.draw(512, besides=drawn))) == 1024
    refills = PromptOrder(make_config(groups="refill"), rows=1_000_000, prompt_of=never_read)
    assert len(set(refills.draw(512))) == 512
