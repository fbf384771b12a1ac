"""Data files that a reader would like to understand: what they hold is kept as it was written."""

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data_helpers import GOOD, read

from trl_credit.data import load_prompts


pytestmark = pytest.mark.hostile("data files", "survived")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("stem", ["a*b", "a[1]", "a?", "**", "{a,b}", "x=1", "a::b", "a b%20#"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "arrow"])
def test_a_name_is_one_file(stem, kind):
    Path("saved=1").mkdir()  # as a folder of a partitioned set is called
    for other in ("a1b", "a22b", "a1", "ab", "a", "b"):
        Path("saved=1", f"{other}.{kind}").write_bytes(GOOD * 8)
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}", "answer": f"{i}"} for i in range(3)])
    name = f"saved=1/{stem}.{kind}"
    texts = {
        "jsonl": "\n".join(map(json.dumps, rows.to_pylist())),
        "json": json.dumps(rows.to_pylist(), indent=1),
        "csv": "prompt,answer\n0,0\n1,1\n2,2\n",
    }
    if kind in texts:
        Path(name).write_text(texts[kind])
    elif kind == "parquet":
        with open(name, "wb") as file:
            pyarrow.parquet.write_table(rows, file)
    else:
        with pyarrow.OSFile(name, "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows)
    data = load_prompts(name, style="plain")
    assert data["prompt"] == ["0", "1", "2"] and data.column_names == ["prompt", "answer", "id"]


@pytest.mark.parametrize(
    ("literals", "answers"),
    [
        (['"2020-01-02"', '"2020-01-03"'], ["2020-01-02", "2020-01-03"]),
        (['"12:30:00"', '"2020-01-02T03:04:05Z"'], ["12:30:00", "2020-01-02T03:04:05Z"]),
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
        (["123456789012345678901234567890", "1"], ["123456789012345678901234567890", "1"]),
        (["0.10", "2.50", "1e5", "1E+05", "-0.0", "1.0e-400"], ["0.10", "2.50", "1e5", "1E+05", "-0.0", "1.0e-400"]),
        (["27.0", "27", '"27"'], ["27.0", "27", "27"]),
        (['"007"', '"1e3"', '" 1 "', '"null"', '"NaN"'], ["007", "1e3", " 1 ", "null", "NaN"]),
        (["null"] * 1500 + ['"x"'], [None] * 1500 + ["x"]),
        (["[1, 2.50]", '["1"]', "[]", "3", "null"], ["1, 2.50", "1", "", "3", None]),
        (['"\\u0000\\u2028\\ud83d\\ude00\\u0085"'], ["\0\u2028😀\x85"]),
        (["true", "false"], ["True", "False"]),
        (["9" * 4000], ["9" * 4000]),
    ],
)
@pytest.mark.parametrize("column", ["answer", "target"])
def test_answers_keep_their_text(column, literals, answers):
    rows = [f'{{"prompt": "x", "{column}": {literal}, "date": "2020-01-02"}}' for literal in literals]
    for name, text in {"x.jsonl": "\r\n".join(rows), "x.json": "[" + ",\n".join(rows) + "]"}.items():
        for mark in (b"", b"\xef\xbb\xbf"):
            data = read(name, mark + text.encode())
            assert data["answer"] == answers and set(data["date"]) == {"2020-01-02"}, name


def test_cells_of_csv_keep_their_text():
    answers = [
        "007",
        "1e3",
        "12345678901234567890",
        "NaN",
        "",
        "None",
        "2020-01-02",
        " 1",
        '"',
        "a\nb",
        "a\r\nb",
        "1,2",
    ]
    answers.append("x" * 300_000)
    limit = csv.field_size_limit()
    for ending in ("\n", "\r\n"):
        with open("x.csv", "w", newline="", encoding="utf-8-sig") as file:
            out = csv.writer(file, lineterminator=ending)
            out.writerow(["", "prompt", "answer"])  # with pandas' column of row numbers
            out.writerows([i, "x", answer] for i, answer in enumerate(answers))
        data = load_prompts("x.csv", style="plain")
        assert data["answer"] == answers and data["Unnamed: 0"][3] == "3"
    assert csv.field_size_limit() == limit


def test_parquet_types_are_what_they_are():
    columns = {
        "whole": ([9007199254740993, None], None, ["9007199254740993", None]),
        "single": ([0.1, 2.5], pyarrow.float32(), ["0.1", "2.5"]),
        "double": ([0.1, 27.0], None, ["0.1", "27.0"]),
        "decimal": (["0.10", "2.50"], pyarrow.decimal128(5, 2), ["0.10", "2.50"]),
        "text": (["2020-01-02", "007"], pyarrow.large_string(), ["2020-01-02", "007"]),
        "lists": ([[1, 2], [3]], None, ["1, 2", "3"]),
    }
    for name, (values, kind, answers) in columns.items():
        array = pyarrow.array(values).cast(kind) if kind is not None else pyarrow.array(values)
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x", "y"], name: array}), f"{name}.parquet")
        data = load_prompts(f"{name}.parquet", style="plain", answer_column=name)
        assert data["answer"] == answers, name


def test_rows_of_every_shape():
    tool = {"type": "object", "properties": {"x": {"type": "number", "enum": [1.5, 2]}}}
    first, second = ({"role": role, "content": "s"} for role in ("system", "user"))
    rows = [
        {"prompt": [second], "answer": 1, "level": 3, "tools": [tool], "empty": {}, "no": []},
        {"prompt": [first, second], "answer": "x", "level": None},
        {"prompt": [{"role": "user", "content": None}], "answer": None, "extra": [[True], []], "score": 0.25},
    ]
    data = read("x.jsonl", "\n".join(map(json.dumps, rows)).encode(), conversational=True)
    assert data["prompt"] == [row["prompt"] for row in rows] and data["answer"] == ["1", "x", None]
    assert data["level"] == [3, None, None] and data["extra"] == [None, None, [[True], []]]
    assert data["tools"] == [[tool | {"properties": {"x": {"type": "number", "enum": [1.5, 2.0]}}}], None, None]
    assert data["empty"] == [{}, None, None] and data["no"] == [[], None, None] and data["score"] == [None, None, 0.25]


def test_nested_as_deep_as_may_be():
    deep = '[{"a": ' * 15 + '["' + "[{" * 99 + '"]' + "}]" * 15
    data = read("x.jsonl", f'{{"prompt": "x", "answer": "2", "meta": {deep}}}\n'.encode() + GOOD)
    assert data["meta"] == [json.loads(deep), None]


@pytest.mark.slow
def test_a_huge_line_and_many_rows():
    big = "x" * 50_000_000
    data = read("x.jsonl", json.dumps({"prompt": big, "answer": "2"}).encode() + b"\n" + GOOD * 30_000)
    assert len(data) == 30_001 and data[0]["prompt"] == big and data[30_000]["id"] == "x-30000"
