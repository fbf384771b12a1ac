"""`trl-credit eval A B` refuses meaningless comparisons in one line that names the difference."""

import json
from pathlib import Path

import pytest
from evaluation_helpers import sample_file, stored
from script_helpers import error_of

from trl_credit.cli.eval import main


RIGHT, WRONG = [[True, False]] * 6, [[False, False]] * 6
# changes of the header or of a problem's line → words of the message
CASES = [
    ({"temperature": 0.6}, {}, "temperature is 1.0 and 0.6"),
    ({"reward": "mine.py:f", "reward_source": "mine.py:f 0"}, {}, "reward is 'accuracy' and 'mine.py:f'"),
    ({"set_name": "gsm8k"}, {}, "only b has gsm8k (demo)"),
    ({"ids": list("uvwxyz")}, {}, "no problem id in common"),
    ({"metrics": ["maj@2"]}, {}, "give --metrics pass@1"),
    ({"problems": 7}, {}, "is not finished"),
    ({}, {"reference": {"answer": "3"}}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"prompt": "another"}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"samples": []}, "problem 'p2' has not 2 samples"),
    *(
        ({}, {"samples": [bad, {"correct": True}]}, "problem 'p2' has not 2 samples with a verdict")
        for bad in ({"correct": 1}, {})
    ),
]


@pytest.mark.hostile("comparisons", "refused")
@pytest.mark.parametrize(("header", "line", "words"), CASES)
def test_samples_that_cannot_be_compared(tmp_path, monkeypatch, capsys, header, line, words):
    monkeypatch.chdir(tmp_path)
    stored("a", "a", RIGHT)
    path = sample_file(stored("b", "b", WRONG, **header))
    lines = path.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), **line})
    path.write_text("\n".join(lines) + "\n")
    before = sorted(Path(".").rglob("*"))
    assert words in error_of(main, ["a", "b"], capsys)
    assert sorted(Path(".").rglob("*")) == before
