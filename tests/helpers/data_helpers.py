"""Rows, prompts and parameters that the tests of data share."""

import json
from pathlib import Path

import pytest
import yaml
from conftest import EXTRACTS, SHARED

from trl_credit.data import load_prompts


# the extracts always; the whole data sets, if they are there, with `-m slow`
whole_is_slow = pytest.mark.parametrize(
    "data_folder",
    ["extract", *([pytest.param("whole", marks=pytest.mark.slow)] if SHARED.is_dir() else [])],
    indirect=True,
)
CASES = yaml.safe_load((EXTRACTS / "cases.yaml").read_text(encoding="utf-8"))
GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'
ROWS = [{"problem": f"What is ${i}+1$?", "answer": str(i + 1)} for i in range(6)]
DAPO_TEXT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $1+1$?\n\nRemember to put your "
    'answer on its own line after "Answer:".'
)


def cases(name) -> list[dict]:
    """The cases of a file in the folder of the tests."""
    lines = (Path(__file__).parents[1] / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, lines))


def read(name, content, **settings):
    """The prompts of a file with this content."""
    Path(name).write_bytes(content)
    return load_prompts(str(name), style="plain", **settings)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
