"""Data files: broken ones are refused with the file and the fix, and what others hold is kept as it was written."""

import csv
import random
from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data_helpers import GOOD, read


refuses = pytest.mark.hostile("data files", "refused")
pytestmark = [pytest.mark.hostile("data files", "survived"), pytest.mark.usefixtures("here")]
X = b'{"prompt": "x", "answer": '


def rows_of(*cells: str) -> bytes:
    return "".join(f'{{"prompt": "x", "answer": "2", "level": {cell}}}\n' for cell in cells).encode()


# what is wrong → the file, its content, and what the message names
FILES = {
    "cut line": ("x.jsonl", GOOD * 2 + b"\r\n" + X + b"\n" + GOOD, "line 4"),
    "two on a line": ("x.jsonl", GOOD + X + b'"2"} {"prompt": "y"}\n', "line 2"),
    "many digits": ("x.jsonl", GOOD + X + b"9" * 5000 + b"}", "line 2"),
    "deep": ("x.jsonl", GOOD + X + b"[" * 50_000 + b"]" * 50_000 + b"}", "line 2"),
    "list": ("x.jsonl", GOOD * 2 + b'["x", "2"]\n' + GOOD, "row 2"),
    "object as answer": ("x.jsonl", GOOD + X + b'{"value": "2"}}', "'answer'"),
    "null in a list": ("x.jsonl", GOOD + X + b'["2", null]}', "'answer'"),
    "NaN": ("x.jsonl", GOOD + X + b"NaN}", "'answer'"),
    "no prompt": ("x.jsonl", GOOD * 2 + b'{"answer": "2"}', "row 2 has no prompt"),
    "empty prompt": ("x.jsonl", GOOD * 2 + b'{"prompt": "", "answer": "2"}', "row 2 has no prompt"),
    "number as prompt": ("x.jsonl", GOOD + b'{"prompt": 12, "answer": "2"}', "'prompt'"),
    "messages": ("x.jsonl", GOOD + b'{"prompt": [{"role": "user", "content": "x"}], "answer": "2"}', "'prompt'"),
    "surrogate": ("x.jsonl", GOOD + b'{"prompt": "a\\ud83d", "answer": "2"}', "'prompt'"),
    "nested": ("x.jsonl", GOOD + X + b'"2", "meta": ' + b"[" * 100 + b"]" * 100 + b"}", "ArrowSchema"),
    "number and text": ("x.jsonl", rows_of("1", '"one"'), "column 'level': "),
    "number and truth": ("x.jsonl", rows_of("1", "true"), "column 'level': "),
    "large number": ("x.jsonl", rows_of("1", "1" * 30), "column 'level': "),
    "no comma": ("x.json", b'[{"prompt": "x"},\n\n{"prompt": "y" "answer": "2"}]', "line 3"),
    "two lists": ("x.json", b'[\n{"prompt": "x",\n"answer": "2"}]\n[]', "line 4"),
    "one object": ("x.json", b'{"data": [{"prompt": "x", "answer": "2"}]}', "'prompt'"),
    "no rows": ("x.json", b"\xef\xbb\xbf[]", "no rows"),
    "latin-1": ("x.json", b'{"prompt": "caf\xe9"}', "utf-8"),
    "short row": ("x.csv", b"prompt,answer\nx,2\ny\n", "Row #3"),
    "open quote": ("x.csv", b'prompt,answer\n"x,2\ny,3\n', "Row #2"),
    "latin-1 in CSV": ("x.csv", b"prompt,answer\nx,2\ncaf\xe9,3\n", "invalid UTF8"),
    "column twice": ("x.csv", b"prompt,answer,answer\nx,2,3\n", "'answer'"),
    "semicolons": ("x.csv", b"prompt;answer\nx;2\n", "'prompt'"),
    "header alone": ("x.csv", b"prompt,answer\n", "no rows"),
    "empty": ("x.csv", b"", "csv"),
}


@refuses
@pytest.mark.parametrize("case", FILES)
def test_a_broken_file_is_named_with_the_place(case):
    name, content, named = FILES[case]
    with pytest.raises(ValueError, match=name) as error:
        read(name, content)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600


@refuses
@pytest.mark.parametrize("column", ["prompt", "answer"])
@pytest.mark.parametrize("value", [date(2020, 1, 2), float("inf"), b"2"])
def test_types_of_parquet_that_are_no_prompt_or_answer(column, value):
    table = pyarrow.table({"prompt": ["x"], "answer": ["2"]} | {column: [value]})
    pyarrow.parquet.write_table(table, "x.parquet")
    with pytest.raises(ValueError, match=f"row 0: column '{column}'"):
        read("x.parquet", Path("x.parquet").read_bytes())


def test_binary_files_overwritten_at_random(record_property):
    """An error, or another text where only letters changed; and never the end of the process."""
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(200)])
    pyarrow.parquet.write_table(rows, "x.parquet")
    noise, whole = random.Random(0), Path("x.parquet").read_bytes()
    contents = [whole[:100], whole[: len(whole) // 2], b"", GOOD]
    for _ in range(124):
        damaged = bytearray(whole)
        for _ in range(noise.choice((1, 8))):
            damaged[noise.randrange(len(whole))] = noise.randrange(256)
        contents.append(bytes(damaged))
    for i, content in enumerate(contents):
        try:
            assert 0 < len(read("x.parquet", content)) <= 200
            assert i >= 4
        except (ValueError, OSError) as error:
            assert "x.parquet" in str(error)
    record_property("tried", 128)


@pytest.mark.parametrize("stem", ["a*b", "a[1]", "**", "x=1", "a::b"])
def test_a_name_is_one_file(stem):
    Path("saved=1").mkdir()  # as a folder of a partitioned set is called
    for other in ("a1b", "a1", "ab", "a"):
        Path("saved=1", f"{other}.jsonl").write_bytes(GOOD * 8)
    assert len(read(f"saved=1/{stem}.jsonl", GOOD * 3)) == 3


ANSWERS = [
    (['"2020-01-02"', '"12:30:00"'], ["2020-01-02", "12:30:00"]),
    (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
    (["123456789012345678901234567890", "1"], ["123456789012345678901234567890", "1"]),
    (["0.10", "1e5", "1E+05", "-0.0", "1.0e-400"], ["0.10", "1e5", "1E+05", "-0.0", "1.0e-400"]),
    (["27.0", "27", '"27"'], ["27.0", "27", "27"]),
    (['"007"', '" 1 "', '"null"', '"NaN"'], ["007", " 1 ", "null", "NaN"]),
    (["null"] * 1500 + ['"x"'], [None] * 1500 + ["x"]),
    (["[1, 2.50]", '["1"]', "[]", "3", "null"], ["1, 2.50", "1", "", "3", None]),
    (['"\\u0000\\u2028\\ud83d\\ude00\\u0085"'], ["\0\u2028😀\x85"]),
    (["true", "false"], ["True", "False"]),
]


@pytest.mark.parametrize(("literals", "answers"), ANSWERS)
def test_answers_keep_their_text(literals, answers):
    rows = [f'{{"prompt": "x", "answer": {literal}, "date": "2020-01-02"}}' for literal in literals]
    for name, text in {"x.jsonl": "\r\n".join(rows), "x.json": "\ufeff[" + ",\n".join(rows) + "]"}.items():
        data = read(name, text.encode())
        assert data["answer"] == answers and set(data["date"]) == {"2020-01-02"}, name


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_cells_of_csv_keep_their_text(ending):
    answers = ["007", "1e3", "12345678901234567890", "NaN", "", "None", "2020-01-02", " 1", '"', "a\nb", "1,2"]
    answers.append("x" * 3_000_000)
    with open("x.csv", "w", newline="", encoding="utf-8-sig") as file:
        out = csv.writer(file, lineterminator=ending)
        out.writerows([["", "prompt", "answer"], *(["0", "x", answer] for answer in answers)])
    assert read("x.csv", Path("x.csv").read_bytes())["answer"] == answers


def test_parquet_types_are_what_they_are():
    columns = {
        "single": ([0.1, 2.5], pyarrow.float32(), ["0.1", "2.5"]),
        "decimal": (["0.10", "2.50"], pyarrow.decimal128(5, 2), ["0.10", "2.50"]),
        "lists": ([[1, 2], [3]], None, ["1, 2", "3"]),
    }
    for name, (values, kind, answers) in columns.items():
        array = pyarrow.array(values).cast(kind) if kind is not None else pyarrow.array(values)
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x", "y"], name: array}), "x.parquet")
        data = read("x.parquet", Path("x.parquet").read_bytes(), answer_column=name)
        assert data["answer"] == answers, name
