"""docs/start.md: the data of its first real model, its reward, and its settings on the embedded model."""

import json
import runpy

import pytest
from scripts import ROOT


SUMS = runpy.run_path(str(ROOT / "examples" / "sums" / "sums.py"))


@pytest.mark.parametrize(
    ("text", "reward"),
    [(" 64", 1.0), (" 64, which is", 1.0), ("\n64.", 1.0), (" 640", 0.0), (" 54", 0.0), (" about 64", 0.0), ("", 0.0)],
)
def test_the_reward_reads_the_first_number(text, reward):
    assert SUMS["right"]([text], ["64"], problem=["35 + 29"]) == [reward]


def test_the_sets_hold_every_sum_once(tmp_path):
    SUMS["write"](tmp_path / "sums")
    files = [tmp_path / "sums" / f"{name}.jsonl" for name in ("train", "test")]
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [len(part) for part in parts] == [2244, 256]
    rows = [row for part in parts for row in part]
    assert len({row["problem"] for row in rows}) == 2500
    assert all(eval(row["problem"]) == int(row["answer"]) for row in rows)
