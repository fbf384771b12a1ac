"""`prompt_rates.jsonl`, resumes with it and starts from it; files that are refused."""

import json
import logging
import math

import pytest
from custom_functions import args_of
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_helpers import by_difficulty, in_turn, never_read, prompt

from trl_credit.rollouts.prompt_order import PromptOrder
from trl_credit.rollouts.prompt_rates import PROMPT_RATES_FILE, prompt_digest, read_rates
from trl_credit.runs.checkpoints import read_state, write_state


NAN = math.nan


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rates_are_kept_and_what_is_none_is_refused_as_a_whole():
    order = by_difficulty(4)
    assert order.stats() == {"prompts_seen": 0.0, "prompts_retired": 0.0}
    order.note([0, 1], [0.25, NAN])
    order.note([0, 0], [0.75, NAN])
    before = order.stats()
    assert before == {"prompts_seen": 0.5, "prompts_retired": 0.0, "pass_rate": 0.75}
    for rows, rates, words in (
        ([2, 3], [0.5, 1.5], "1.5 is not in .0, 1.: set reward_range"),
        ([2, 3], [0.5, -math.inf], "-inf is not"),
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


@pytest.mark.slow
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

    file.write_text(content.replace("0.25", "0.35"))
    refuses("is not what the checkpoint was written with")
    file.unlink()
    refuses("prompt_rates.jsonl cannot be read")
    file.write_text(content)
    order.load_state_dict(state, tmp_path)
