"""Data files: broken ones are refused with the file and the fix, and what others hold is kept as it was written."""

import csv
import random
from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data_helpers import GOOD, read
from script_helpers import error_of
from scripts import load_script


refuses = pytest.mark.hostile("data files", "refused")
keeps = pytest.mark.hostile("data files", "survived")
script = load_script("examples/train.py")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(capsys):
    """The one line that `examples/train.py` ends with, after exit code 2."""
    Path("mine.py").write_text("def mine(completions, **kwargs):\n    return [0.0 for _ in completions]\n")

    def run(name, *flags, content=None):
        if content is not None:
            Path(name).write_bytes(content)
        error = error_of(script.main, ["--dataset_name", name, "--reward", "mine.py:mine", *flags], capsys)
        assert len(error) < 600 and f"'{name}'" in error
        return error

    return run


X = b'{"prompt": "x", "answer": '
LINES = {
    "cut": X,
    "comma": X + b'"2",}',
    "two": X + b'"2"} {"prompt": "y"}',
    "quotes": b"{'prompt': 'x', 'answer': '2'}",
    "control": b'{"prompt": "a\x00b", "answer": "2"}',
    "nan": X + b"nan}",
    "zero": X + b"01}",
    "digits": X + b"9" * 5000 + b"}",
    "deep": X + b"[" * 50_000 + b"]" * 50_000 + b"}",
}


@refuses
@pytest.mark.parametrize("line", LINES)
def test_a_broken_line_is_named(refused, line):
    assert "line 4" in refused("x.jsonl", content=GOOD * 2 + b"\r\n" + LINES[line] + b"\n" + GOOD)


# a row among good ones → the column or the row that is named
ROWS = {
    "list": (b'["x", "2"]', "row 2"),
    "null": (b"null", "row 2"),
    "object": (X + b'{"value": "2"}}', "'answer'"),
    "null in a list": (X + b'["2", null]}', "'answer'"),
    "NaN": (X + b"NaN}", "'answer'"),
    "no prompt": (b'{"answer": "2"}', "row 2 has no prompt"),
    "empty prompt": (b'{"prompt": "", "answer": "2"}', "row 2 has no prompt"),
    "number": (b'{"prompt": 12, "answer": "2"}', "'prompt'"),
    "messages": (b'{"prompt": [{"role": "user", "content": "x"}], "answer": "2"}', "'prompt'"),
    "surrogate": (b'{"prompt": "a\\ud83d", "answer": "2"}', "'prompt'"),
    "nested": (X + b'"2", "meta": ' + b"[" * 100 + b"]" * 100 + b"}", "ArrowSchema"),
}


@refuses
@pytest.mark.parametrize("row", ROWS)
def test_a_row_that_is_no_row_is_named(refused, row):
    content, named = ROWS[row]
    assert named in refused("x.jsonl", content=GOOD * 2 + content + b"\n" + GOOD)


@refuses
@pytest.mark.parametrize("values", [["1", '"one"'], ["1", "true"], ["1", "1" * 30], ['{"k": 1}', '{"k": "1"}']])
def test_a_column_without_a_type_is_named(refused, values):
    rows = "".join(f'{{"prompt": "x", "answer": "2", "level": {value}}}\n' for value in values)
    assert "column 'level': " in refused("x.jsonl", content=rows.encode())


FILES = [
    ("x.jsonl", b"".join(b'{"prompt": "x", "a%d": 1}\n' % i for i in range(2000)), "1,000 different keys"),
    ("x.json", b'[{"prompt": "x"},\n\n{"prompt": "y" "answer": "2"}]', "line 3"),
    ("x.json", b'[\n{"prompt": "x",\n"answer": "2"}]\n[]', "line 4"),
    ("x.json", b'{\n  "prompt": "x"\n}\n', "line 1"),
    ("x.json", b'{"data": [{"prompt": "x", "answer": "2"}]}', "'prompt'"),
    ("x.json", b"[]", "no rows"),
    ("x.json", b"\xef\xbb\xbf", "no rows"),
    ("x.json", b'{"prompt": "caf\xe9"}', "utf-8"),
    ("x.json", '[{"prompt": "x"}]'.encode("utf-16"), "utf-8"),
    ("x.csv", b"prompt,answer\nx,2\ny\n", "Row #3"),
    ("x.csv", b"prompt,answer\nx,2\n1,234,5\n", "Row #3"),
    ("x.csv", b'prompt,answer\n"x,2\ny,3\n', "Row #2"),
    ("x.csv", b"prompt,answer\nx,2\ncaf\xe9,3\n", "invalid UTF8"),
    ("x.csv", b"prompt,answer,answer\nx,2,3\n", "'answer'"),
    ("x.csv", b"prompt;answer\nx;2\n", "'prompt'"),
    ("x.csv", b"prompt,answer\n,2\n", "row 0 has no prompt"),
    ("x.csv", b"prompt,answer\n", "no rows"),
    ("x.csv", b"", "csv"),
]


@refuses
@pytest.mark.parametrize("number", range(len(FILES)))
def test_a_file_that_is_no_list_of_rows(refused, number):
    name, content, named = FILES[number]
    assert named in refused(name, content=content)


@refuses
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"prompt": ["x"], "answer": [date(2020, 1, 2)]}, "row 0: column 'answer'"),
        ({"prompt": ["x"], "answer": [float("inf")]}, "row 0: column 'answer'"),
        ({"prompt": ["x"], "answer": [b"2"]}, "row 0: column 'answer'"),
        ({"prompt": [date(2020, 1, 2)], "answer": ["2"]}, "row 0: column 'prompt'"),
        ({"prompt": [], "answer": []}, "no rows"),
        ({"prompt": ["x"], "answer": ["2"], "Answer": ["3"]}, "'answer'"),
    ],
)
def test_types_of_parquet_that_are_no_prompt_or_answer(refused, columns, named):
    arrays = list(map(pyarrow.array, columns.values()))
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=[name.lower() for name in columns]), "x.parquet")
    assert named in refused("x.parquet")


@keeps
def test_binary_files_overwritten_at_random(refused, record_property):
    """An error, or another text where only letters changed; and never the end of the process."""
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(200)])
    pyarrow.parquet.write_table(rows, "x.parquet")
    with pyarrow.OSFile("x.arrow", "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as out:
        out.write_table(rows)
    noise = random.Random(0)
    for name in ("x.parquet", "x.arrow"):
        whole = Path(name).read_bytes()
        for content in (whole[:100], whole[: len(whole) // 2], b"", GOOD):
            refused(name, content=content)
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(noise.choice((1, 8))):
                damaged[noise.randrange(len(whole))] = noise.randrange(256)
            try:
                assert 0 < len(read(name, bytes(damaged))) <= 200
            except (ValueError, OSError) as error:
                assert name in str(error)
    record_property("tried", 128)


@keeps
@pytest.mark.parametrize("stem", ["a*b", "a[1]", "**", "{a,b}", "x=1", "a::b", "a b%20#"])
def test_a_name_is_one_file(stem):
    Path("saved=1").mkdir()  # as a folder of a partitioned set is called
    for other in ("a1b", "a1", "ab", "a"):
        Path("saved=1", f"{other}.jsonl").write_bytes(GOOD * 8)
    assert len(read(f"saved=1/{stem}.jsonl", GOOD * 3)) == 3


@keeps
@pytest.mark.parametrize(
    ("literals", "answers"),
    [
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
    ],
)
def test_answers_keep_their_text(literals, answers):
    rows = [f'{{"prompt": "x", "answer": {literal}, "date": "2020-01-02"}}' for literal in literals]
    for name, text in {"x.jsonl": "\r\n".join(rows), "x.json": "\ufeff[" + ",\n".join(rows) + "]"}.items():
        data = read(name, text.encode())
        assert data["answer"] == answers and set(data["date"]) == {"2020-01-02"}, name


@keeps
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_cells_of_csv_keep_their_text(ending):
    answers = ["007", "1e3", "12345678901234567890", "NaN", "", "None", "2020-01-02", " 1", '"', "a\nb", "1,2"]
    answers.append("x" * 3_000_000)
    with open("x.csv", "w", newline="", encoding="utf-8-sig") as file:
        out = csv.writer(file, lineterminator=ending)
        out.writerows([["", "prompt", "answer"], *(["0", "x", answer] for answer in answers)])
    assert read("x.csv", Path("x.csv").read_bytes())["answer"] == answers


@keeps
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
