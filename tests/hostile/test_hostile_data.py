"""Data files that are broken are refused with the file, the line and the fix."""

import gzip
import json
import os
import random
from datetime import date, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data_helpers import GOOD, read
from script_helpers import error_of
from scripts import load_script


pytestmark = pytest.mark.hostile("data files", "refused")
script = load_script("examples/train.py")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The one line that `examples/train.py` ends with, after exit code 2."""
    monkeypatch.chdir(tmp_path)

    def run(name, *flags, content=None):
        if content is not None:
            Path(name).write_bytes(content)
        error = error_of(script.main, ["--dataset_name", name, "--reward", "mine.py:mine", *flags], capsys)
        assert len(error) < 600
        return error

    Path("mine.py").write_text("def mine(completions, **kwargs):\n    return [0.0 for _ in completions]\n")
    return run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x", "answer": ', "Expecting value"),
        (b'{"prompt": "x", "answer": "2"', "Expecting ',' delimiter"),
        (b'{"prompt": "x", "answer": "2"}}', "'}' follows the row"),
        (b'{"prompt": "x", "answer": "2"} {"prompt": "y", "answer": "3"}', "follows the row"),
        (b"{'prompt': 'x', 'answer': '2'}", "property name enclosed in double quotes"),
        (b'{"prompt": "x", "answer": "2",}', "property name"),
        (b'["x", "2"]', "is not an object"),
        (b'"x"', "is not an object"),
        (b"7", "is not an object"),
        (b"null", "is not an object"),
        (b"prompt,answer", "Expecting value"),
        (b"\x00" * 40, "Expecting value"),
        (b'{"prompt": "a\x00b", "answer": "2"}', "Invalid control character"),
        (b'{"prompt": "a\tb", "answer": "2"}', "Invalid control character"),
        ('{"prompt": "café", "answer": "2"}'.encode("latin-1"), "byte 0xe9 is not UTF-8"),
        (b'{"prompt": "\xed\xa0\x80", "answer": "2"}', "is not UTF-8"),
        (b'{"prompt": "a\\ud83d", "answer": "2"}', "half of a surrogate pair"),
        (b'{"prompt": "x", "answer": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "x", "answer": Infinity}', "Infinity is not a JSON number"),
        (b'{"prompt": "x", "answer": "2", "score": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"prompt": "x", "answer": nan}', "Expecting value"),
        (b'{"prompt": "x", "answer": 01}', "Expecting ',' delimiter"),
        (b'{"prompt": "x", "answer": ' + b"9" * 5000 + b"}", "a number of 5,000 digits"),
        (b'{"prompt": "x", "answer": "2", "answer": "3"}', "the key 'answer' occurs twice"),
        (b'{"prompt": "x", "answer": "2", "meta": {"a": 1, "a": 2}}', "the key 'a' occurs twice"),
        (b'{"prompt": "x", "answer": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested more than 32 deep"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested more than 32 deep"),
        (b'{"prompt": "x", "answer": ' + b"[" * 900 + b"]" * 900 + b"}", "nested more than 32 deep"),
        (b'{"prompt": "x", "answer": ' + b'{"a":' * 32 + b"1" + b"}" * 33, "nested more than 32 deep"),
        (b"[" * 50_000, "nested more than 32 deep"),
        (b'{"prompt": "x", "answer": "2", "meta": ' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 32 deep"),
        (b'{"prompt": "x", "answer": {"value": "2"}}', "a dict and neither text nor a number"),
        (b'{"prompt": "x", "answer": ["2", null]}', "a NoneType and neither text nor a number"),
        (b'{"prompt": "x", "answer": [[2]]}', "a list and neither text nor a number"),
        (b'{"prompt": "", "answer": "2"}', "has no prompt"),
        (b'{"answer": "2"}', "has no prompt"),
        (b'{"prompt": null, "answer": "2"}', "has no prompt"),
        (b'{"prompt": 12, "answer": "2"}', "column 'prompt' holds a int"),
        (b'{"prompt": {"role": "user"}, "answer": "2"}', "column 'prompt' holds a dict"),
        (b'{"prompt": ["x"], "answer": "2"}', "column 'prompt' holds a list"),
        (b'{"prompt": [{"content": "x"}], "answer": "2"}', "column 'prompt' holds a list"),
        (b'{"prompt": [{"role": "user", "content": "x"}], "answer": "2"}', "column 'prompt': "),
    ],
)
def test_a_broken_line_is_named(refused, line, message):
    said = refused("x.jsonl", content=GOOD * 2 + b"\r\n" + line + b"\n" + GOOD)
    assert "'x.jsonl', line 4" in said and message in said


@pytest.mark.parametrize(
    ("values", "line", "message"),
    [
        (["1", "0.5", "9007199254740993"], 3, "9007199254740993"),
        (["0.5", "0.1234567890123456789"], 2, "0.1234567890123456789 is not exact"),
        (["0.5", "1e400"], 2, "1e400 is not exact"),
        (["0.5", "1e-99999999999999999999"], 2, "is not exact"),
        (["1", "123456789012345678901234567890"], 2, "too large"),
        (["1", '"one"'], 2, "'one'"),
        (["true", "null", "1"], 3, "boolean"),
        (["0.5", "1", "true"], 3, "True is not exact"),
        (["true", "0.5"], 2, "boolean"),
        (["1", "true"], 2, "bool"),
        (['"a"', '["a"]'], 2, "'list'"),
        (['{"k": 1}', '{"k": "1"}'], 2, "'1'"),
        (["[1, 2]", '[1, "2"]'], 2, "'2'"),
    ],
)
def test_a_column_with_no_exact_type_is_refused(refused, values, line, message):
    rows = "".join(f'{{"prompt": "x", "answer": "2", "level": {value}}}\n' for value in values)
    said = refused("x.jsonl", content=rows.encode())
    assert f"'x.jsonl', line {line}" in said and "column 'level': " in said and message in said


@pytest.mark.parametrize("row", ['"a{i}": 1', '"meta": {"a{i}": 1}', '"meta": [{"b": {"a{i}": 1}}]'])
def test_a_table_that_grows_with_the_square_of_its_rows(refused, row):
    rows = "".join('{"prompt": "x", "answer": "2", ' + row.replace("{i}", str(i)) + "}\n" for i in range(50_000))
    said = refused("x.jsonl", content=rows.encode())
    assert "'x.jsonl', line 99" in said and "more than 1,000 different keys" in said


FILES = {
    "x.json": [
        (b'[{"prompt": "x", "answer": "2"},\n\n{"prompt": "y" "answer": "2"}]', "line 3: Expecting ',' delimiter"),
        (b'[{"prompt": "x", "answer": "2"}\n{"prompt": "y", "answer": "2"}]', "line 2: ',' or ']' is expected"),
        (b'[\n{"prompt": "x", "answer": "2"},\n]', "line 3: Expecting value"),
        (b'[\n{"prompt": "x", "answer": "2"}\n', "line 3: ',' or ']' is expected"),
        (b'[\n{"prompt": "x",\n"answer": "2"}]\n[]', "line 4: text follows the list"),
        (b'[{"prompt": "x",\n\n"answer": NaN}]', "line 1: NaN"),
        (b'[{"prompt": "x", "answer": "2"},\n7]', "line 2: '7' is not an object"),
        (b'[\n{"prompt": "caf\xe9"}]', "line 2: byte 0xe9"),
        (b'{\n  "prompt": "x",\n  "answer": "2"\n}\n', "line 1: Expecting property name"),
        (b'{"data": [{"prompt": "x", "answer": "2"}]}', "has no column 'prompt' or 'problem' or 'question'"),
        (b"[]", "has no rows"),
        (b" \n\r\n\t\n", "has no rows"),
        (b"", "has no rows"),
        (b"\xef\xbb\xbf", "has no rows"),
        (b"{}\n{}\n", "has no column 'prompt'"),
        ('[{"prompt": "x", "answer": "2"}]'.encode("utf-16"), "not plain text but UTF-16"),
        (gzip.compress(GOOD * 99, mtime=0)[:60], "not plain text but compressed by gzip"),
    ],
    "x.csv": [
        (b"prompt,answer\nx,2\ny\n", "line 3: 1 cells, but the header has 2"),
        (b"prompt,answer\nx,2\n1,234,5\n", "line 3: 3 cells, but the header has 2"),
        (b'prompt,answer\n"x\n\ny",2\n"z" z,3\n', "line 5: ',' expected after '\"'"),
        (b'prompt,answer\n"x,2\ny,3\n', "line 2: unexpected end of data"),
        (b"prompt,answer\nx,2\n\x00,3\n", "line 3: a NUL byte"),
        (b"prompt,answer\nx,2\ncaf\xe9,3\n", "line 3: byte 0xe9"),
        (b"prompt,answer,answer\nx,2,3\n", "line 1: two columns are called 'answer'"),
        (b"prompt;answer\nx;2\n", "has no column 'prompt'"),
        (b"prompt,answer\n,2\n", "line 2 has no prompt"),
        (b"prompt,answer\n", "has no rows"),
        (b"", "has no rows"),
    ],
}


@pytest.mark.parametrize(("name", "content", "message"), [(name, *row) for name, rows in FILES.items() for row in rows])
def test_a_file_that_is_no_list_of_rows(refused, name, content, message):
    said = refused(name, content=content)
    assert f"'{name}'" in said and message in said


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": ["x", "y"], "answer": [date(2020, 1, 2), None]}, "row 0: column 'answer' holds 2020-01-02, a date"),
        ({"prompt": ["x", "y"], "answer": [None, datetime(2020, 1, 2)]}, "row 1: column 'answer' holds 2020-01-02 0"),
        (
            {"prompt": ["x", "y"], "answer": [1.5, float("nan")]},
            "row 1: column 'answer' holds nan, which is not an answer",
        ),
        (
            {"prompt": ["x", "y"], "answer": [float("inf"), 1.0]},
            "row 0: column 'answer' holds inf, which is not an answer",
        ),
        ({"prompt": ["x", "y"], "answer": [b"2", b"3"]}, "row 0: column 'answer' holds b'2', a bytes"),
        ({"prompt": ["x", "y"], "answer": [{"gold": 2}, None]}, "row 0: column 'answer' holds {'gold': 2}, a dict"),
        ({"prompt": [date(2020, 1, 2)], "answer": ["2"]}, "row 0: column 'prompt' holds a date"),
        ({"prompt": [float("nan")], "answer": ["2"]}, "row 0: column 'prompt' holds a float"),
        ({"prompt": [], "answer": []}, "has no rows"),
        ({"prompt": ["x"], "answer": ["2"], "Answer": ["3"]}, "two columns are called 'answer': rename one"),
    ],
)
def test_types_of_parquet_that_are_no_prompt_or_answer(refused, tmp_path, columns, message):
    arrays = list(map(pyarrow.array, columns.values()))
    names = [name.lower() for name in columns]
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=names), tmp_path / "x.parquet")
    said = refused("x.parquet")
    assert "'x.parquet'" in said and message in said


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["2", ""], "cannot be read as mathematics (row 1: ''"),
        (["2", None], "cannot be read as mathematics (row 1: ''"),
        (["Zoey is a knight and Ethan is not"] * 2, "8 of 8 answers cannot be read"),
    ],
)
def test_answers_that_are_no_mathematics(refused, answers, message):
    rows = [json.dumps({"problem": "1+1", "answer": answer}) for answer in answers * 4]
    assert message in refused("x.jsonl", "--reward", "accuracy", content="\n".join(rows).encode())


@pytest.fixture
def binary_files(tmp_path, monkeypatch):
    """Name → content of a file in each binary format."""
    monkeypatch.chdir(tmp_path)
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(200)])
    pyarrow.parquet.write_table(rows, "x.parquet")
    with pyarrow.OSFile("x.arrow", "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as out:
        out.write_table(rows)
    return {name: Path(name).read_bytes() for name in ("x.parquet", "x.arrow")}


@pytest.mark.parametrize("damage", ["cut in its head", "cut in two", "empty", "text"])
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_damaged_binary_files(refused, binary_files, name, damage):
    whole = binary_files[name]
    contents = {"cut in its head": whole[:100], "cut in two": whole[: len(whole) // 2], "empty": b"", "text": GOOD}
    assert f"'{name}'" in refused(name, content=contents[damage])


@pytest.mark.hostile("data files", "survived")
def test_binary_files_overwritten_at_random(binary_files, record_property):
    """An error, or another text where only letters changed; and never the end of the process."""
    noise = random.Random(0)
    for name, whole in binary_files.items():
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(noise.choice((1, 8))):
                damaged[noise.randrange(len(whole))] = noise.randrange(256)
            try:
                assert 0 < len(read(name, bytes(damaged))) <= 200
            except (ValueError, OSError) as error:
                assert name in str(error)
    record_property("tried", 120)


def test_what_cannot_be_opened(refused, record_property):
    os.symlink("loop.jsonl", "loop.jsonl")
    os.symlink("nowhere.jsonl", "hanging.jsonl")
    os.mkfifo("pipe.jsonl")
    for name in ("loop.jsonl", "hanging.jsonl", "pipe.jsonl", "x" * 300 + ".jsonl", "a/" * 200 + "x.jsonl"):
        assert name in refused(name)
    record_property("tried", 5)
