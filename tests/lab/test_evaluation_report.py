"""The table and the figure of an evaluation: levels, intervals, strict columns, several models, hostile text."""

import json

import pytest

from trl_credit.lab.evaluation import rescore
from trl_credit.lab.evaluation.problems import ProblemOptions, load_problems
from trl_credit.lab.evaluation.runner import sample_lines
from trl_credit.lab.evaluation.sample_store import SampleFile
from trl_credit.lab.evaluation.score_report import score_markdown
from trl_credit.lab.evaluation.scores import score_row


HEADER = {"version": 1, "model": "m", "revision": None, "protocol": "p", "samples": 1, "temperature": 1.0, "seed": 0}
HEADER |= {"metrics": ["pass@1"], "reward": "accuracy", "set": "s"}


def test_a_file_with_levels_and_hostile_output(tmp_path, sampler):
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "level": f"Level {1 + i % 5}"} for i in range(8)]
    (tmp_path / "math500.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(str(tmp_path / "math500.jsonl"), sampler.tokenizer, ProblemOptions("plain"))
    outputs = [f"\\boxed{{{i + 1}}}" if i % 2 else "\ud800|<b>`\n\x00\u2028" * 9 for i in range(8)]
    header = {**HEADER, "model": "a|b\n<i>_x_</i>$y$", "set": "math500", "problems": 8}
    samples = [[{"text": text, "length": 1, "truncated": False}] for text in outputs]
    lines = sample_lines(header, problems, samples)
    assert [line["samples"][0]["correct"] for line in lines] == [i % 2 == 1 for i in range(8)]
    path = tmp_path / "samples" / "m" / "s.jsonl"
    SampleFile(path, header, lines).write()
    assert path.read_bytes().count(b"\n") == 9
    (row,) = rescore(tmp_path)
    # levels 1 2 3 4 5 1 2 3, every second one right
    parts = {level: (part["problems"], part["metrics"]["pass@1"]["value"]) for level, part in row["by_level"].items()}
    assert parts == {"easy (level 1)": (2, 0.5), "mid (levels 2, 3)": (4, 0.5), "hard (levels 4, 5)": (2, 0.5)}
    text = (tmp_path / "evaluation.md").read_text()
    assert "a\\|b \\<i\\>\\_x\\_\\</i\\>\\$y\\$" in text and "boxed" not in text and "\x00" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3 + 3 + 5 and "| easy (level 1)" in text and "\n\nBy difficulty level.\n\n|" in text


def test_intervals_revisions_and_strict_columns():
    header = {**HEADER, "revision": "0123456789abcdef", "temperature": 0.0}
    sample = {"answer": "1", "correct": True, "length": 3, "truncated": False}
    right = {"reference": {"answer": "1"}, "samples": [sample]}
    row = score_row(header, [right])
    wilson = {"value": 1.0, "low": pytest.approx(0.2065, abs=1e-4), "high": 1.0, "interval": "wilson"}
    assert row["metrics"]["pass@1"] == wilson  # one right problem shows little
    text = score_markdown([row])
    assert "| m (0123456789ab) " in text and "greedy" in text and "By difficulty" not in text
    assert "| 100.0 [20.7, 100.0] W |" in text and "W: Wilson's interval" in text and "strict" not in text
    wrong = [{"reference": {"answer": "1"}, "samples": [{**sample, "correct": False}]}] * 24
    assert "| 0.0 [0.0, 13.8] W " in score_markdown([score_row(header, wrong)])
    text = score_markdown([score_row(header, [*wrong, right])])
    assert "| 4.0 [0.0, 12.0] |" in text and "Wilson" not in text
    row = score_row(header, [{**right, "samples": [{**sample, "correct_strict": False}]}])
    assert [row[part]["pass@1"]["value"] for part in ("metrics", "metrics_strict")] == [1.0, 0.0]
    assert "| s pass@1 " in score_markdown([row]) and "| s pass@1 strict " in score_markdown([row])
