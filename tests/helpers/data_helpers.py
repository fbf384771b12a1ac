"""Rows, prompts and parameters that the tests of data share."""

import json

import pytest
from conftest import SHARED


# the extracts always; the whole data sets, if they are there, with `-m slow`
whole_is_slow = pytest.mark.parametrize(
    "data_folder",
    ["extract", *([pytest.param("whole", marks=pytest.mark.slow)] if SHARED.is_dir() else [])],
    indirect=True,
)
ROWS = [{"problem": f"What is ${i}+1$?", "answer": str(i + 1)} for i in range(6)]
DAPO_TEXT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $1+1$?\n\nRemember to put your "
    'answer on its own line after "Answer:".'
)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
