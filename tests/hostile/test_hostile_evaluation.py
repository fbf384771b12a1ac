"""`trl-credit eval A B` refuses meaningless comparisons in one line that names what differs."""

import json
from pathlib import Path

import pytest
from evaluation_helpers import sample_file, stored
from script_helpers import error_of

from trl_credit.cli.eval import main


RIGHT, WRONG = [[True, False]] * 6, [[False, False]] * 6


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The line with which `trl-credit eval a b` stops, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    stored("a", "a", RIGHT)

    def run() -> str:
        before = sorted(Path(".").rglob("*"))
        error = error_of(main, ["a", "b"], capsys)
        assert sorted(Path(".").rglob("*")) == before
        return error

    return run


@pytest.mark.hostile("comparisons", "refused")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.6}, "'a' and 'b' on demo (demo) cannot be compared: temperature is 1.0 and 0.6"),
        ({"max_new_tokens": 99}, "max_new_tokens is 24 and 99"),
        ({"top_p": 0.9}, "top_p is 1.0 and 0.9"),
        ({"prompt_style": "text"}, "prompt_style is 'boxed' and 'text'"),
        ({"reward": "mine.py:f", "reward_source": "mine.py:f 0"}, "reward is 'accuracy' and 'mine.py:f'"),
        ({"set_name": "gsm8k"}, "nothing to compare: only a has demo (demo); only b has gsm8k (demo)"),
        ({"label": "demo_greedy"}, "only b has demo (demo_greedy)"),
        ({"ids": list("uvwxyz")}, "have no problem id in common"),
        ({"metrics": ["maj@2"]}, "no metric of demo (demo) can be compared: give --metrics pass@1"),
        ({"problems": 7}, "demo-demo.jsonl is not finished"),
    ],
    ids=str,
)
def test_other_protocols_and_sets(refused, changes, message):
    stored("b", "b", WRONG, **changes)
    assert message in refused()


@pytest.mark.hostile("comparisons", "refused")
@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("reference", {"answer": "3"}, "1 of 6 problems of the same id have another answer or column, such as 'p2'"),
        ("prompt", "another", "1 of 6 problems of the same id have another prompt, such as 'p2'"),
        ("samples", [], "problem 'p2' has 0 samples instead of 2"),
        ("samples", [{"correct": None}, {"correct": True}], "problem 'p2': the verdict None is neither true nor false"),
        ("samples", [{"correct": 1}, {"correct": True}], "the verdict 1 is neither"),
        ("samples", [{}, {"correct": True}], "the verdict None is neither"),
        ("samples", [{"correct": float("nan")}, {"correct": True}], "the verdict nan is neither true nor false"),
    ],
    ids=str,
)
def test_other_problems_and_damaged_verdicts(refused, part, value, message):
    path = sample_file(stored("b", "b", WRONG))
    lines = path.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), part: value})
    path.write_text("\n".join(lines) + "\n")
    assert message in refused()
