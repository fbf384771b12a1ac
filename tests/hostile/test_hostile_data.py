"""Data files that are broken, or that a reader would like to understand: read as written, or refused with the line."""

import csv
import gzip
import importlib.util
import json
import os
import random
from datetime import date, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from trl_credit.data import load_prompts


KIND = "data files"
spec = importlib.util.spec_from_file_location("train_script", Path(__file__).parents[2] / "examples" / "train.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The one line that `examples/train.py` ends with, after exit code 2."""
    monkeypatch.chdir(tmp_path)

    def run(name, *flags, content=None):
        if content is not None:
            Path(name).write_bytes(content)
        with pytest.raises(SystemExit) as stop:
            script.main(["--dataset_name", str(name), "--reward", "mine.py:mine", *flags])
        lines = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2 and len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 600
        return lines[0]

    Path("mine.py").write_text("def mine(completions, **kwargs):\n    return [0.0 for _ in completions]\n")
    return run


def read(name, content, **settings):
    Path(name).write_bytes(content)
    return load_prompts(str(name), style="plain", **settings)


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x", "answer": ', "Expecting value"),
        (b'{"prompt": "x", "answer": "2"', "Expecting ',' delimiter"),
        (b'{"prompt": "x", "answer": "2"}}', "'}' follows the object"),
        (b'{"prompt": "x", "answer": "2"} {"prompt": "y", "answer": "3"}', "follows the object"),
        (b"{'prompt': 'x', 'answer': '2'}", "property name enclosed in double quotes"),
        (b'{"prompt": "x", "answer": "2",}', "property name"),
        (b'["x", "2"]', "is no object"),
        (b'"x"', "is no object"),
        (b"7", "is no object"),
        (b"null", "is no object"),
        (b"prompt,answer", "Expecting value"),
        (b"\x00" * 40, "Expecting value"),
        (b'{"prompt": "a\x00b", "answer": "2"}', "Invalid control character"),
        (b'{"prompt": "a\tb", "answer": "2"}', "Invalid control character"),
        ('{"prompt": "café", "answer": "2"}'.encode("latin-1"), "byte 0xe9 is no UTF-8"),
        (b'{"prompt": "\xed\xa0\x80", "answer": "2"}', "is no UTF-8"),
        (b'{"prompt": "a\\ud83d", "answer": "2"}', "half of a surrogate pair"),
        (b'{"prompt": "x", "answer": NaN}', "NaN is no number of JSON"),
        (b'{"prompt": "x", "answer": Infinity}', "Infinity is no number of JSON"),
        (b'{"prompt": "x", "answer": "2", "score": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"prompt": "x", "answer": nan}', "Expecting value"),
        (b'{"prompt": "x", "answer": 01}', "Expecting ',' delimiter"),
        (b'{"prompt": "x", "answer": ' + b"9" * 5000 + b"}", "a number of 5,000 digits"),
        (b'{"prompt": "x", "answer": "2", "answer": "3"}', "the key 'answer' is there twice"),
        (b'{"prompt": "x", "answer": "2", "meta": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
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
        (b'{"prompt": 12, "answer": "2"}', "column 'prompt' holds a int"),
        (b'{"prompt": {"role": "user"}, "answer": "2"}', "column 'prompt' holds a dict"),
        (b'{"prompt": ["x"], "answer": "2"}', "column 'prompt' holds a list"),
        (b'{"prompt": [{"content": "x"}], "answer": "2"}', "column 'prompt' holds a list"),
        (b'{"prompt": [{"role": "user", "content": "x"}], "answer": "2"}', "column 'prompt' holds a list, and text"),
    ],
)
def test_a_broken_line_is_named(refused, line, message):
    said = refused("x.jsonl", content=GOOD * 2 + b"\r\n" + line + b"\n" + GOOD)
    assert "'x.jsonl', line 4" in said and message in said


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("values", "line", "message"),
    [
        (["1", "0.5", "9007199254740993"], 3, "9007199254740993 would lose digits"),
        (["0.5", "0.1234567890123456789"], 2, "0.1234567890123456789 would lose digits"),
        (["0.5", "1e400"], 2, "1e400 would lose digits"),
        (["0.5", "1e-99999999999999999999"], 2, "would lose digits"),
        (["1", "123456789012345678901234567890"], 2, "would lose digits"),
        (["1", '"one"'], 2, "column 'level' holds text, and a number in line 1"),
        (["true", "null", "1"], 3, "column 'level' holds a number, and a truth value in line 1"),
        (['"a"', '["a"]'], 2, "column 'level' holds a list, and text in line 1"),
        (['{"k": 1}', '{"k": "1"}'], 2, "column 'level.k' holds text, and a number in line 1"),
        (["[1, 2]", '[1, "2"]'], 2, "column 'level' holds text, and a number in line 1"),
    ],
)
def test_a_column_with_no_exact_type_is_refused(refused, values, line, message):
    rows = "".join(f'{{"prompt": "x", "answer": "2", "level": {value}}}\n' for value in values)
    said = refused("x.jsonl", content=rows.encode())
    assert f"'x.jsonl', line {line}" in said and message in said


@pytest.mark.hostile(KIND, "refused")
def test_a_table_that_grows_with_the_square_of_its_rows(refused, record_property):
    rows = "".join(f'{{"prompt": "x", "answer": "2", "a{i}": 1}}\n' for i in range(50_000))
    said = refused("x.jsonl", content=rows.encode())
    assert "'x.jsonl', line 999: the rows have more than 1,000 different columns" in said
    rows = "".join(f'{{"prompt": "x", "answer": "2", "meta": {{"a{i}": 1}}}}\n' for i in range(50_000))
    assert "objects of column 'meta' have 50,000 different keys" in refused("x.jsonl", content=rows.encode())
    record_property("tried", 2)


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"prompt": "x", "answer": "2"},\n\n{"prompt": "y" "answer": "2"}]', "line 3: Expecting ',' delimiter"),
        (b'[{"prompt": "x", "answer": "2"}\n{"prompt": "y", "answer": "2"}]', "line 2: ',' or ']' is expected"),
        (b'[\n{"prompt": "x", "answer": "2"},\n]', "line 3: Expecting value"),
        (b'[\n{"prompt": "x", "answer": "2"}\n', "line 3: ',' or ']' is expected in the list of rows, not ''"),
        (b'[\n{"prompt": "x",\n"answer": "2"}]\n[]', "line 4: something follows the list"),
        (b'[{"prompt": "x",\n\n"answer": NaN}]', "line 1: NaN"),
        (b'[{"prompt": "x", "answer": "2"},\n7]', "line 2: '7]' is no object"),
        (b'[\n{"prompt": "caf\xe9"}]', "line 2: byte 0xe9"),
        (b'{\n  "prompt": "x",\n  "answer": "2"\n}\n', "line 1: Expecting property name"),
        (b'{"data": [{"prompt": "x", "answer": "2"}]}', "has no column 'prompt' or 'problem' or 'question'"),
        (b"[]", "has no rows"),
        (b" \n\r\n\t\n", "has no rows"),
        (b"", "has no rows"),
        (b"\xef\xbb\xbf", "has no rows"),
        (b"{}\n{}\n", "has no column 'prompt'"),
        ('[{"prompt": "x", "answer": "2"}]'.encode("utf-16"), "no plain text but UTF-16"),
        (gzip.compress(GOOD * 99, mtime=0)[:60], "no plain text but compressed by gzip"),
    ],
)
def test_a_json_file_that_is_no_list_of_rows(refused, content, message):
    said = refused("x.json", content=content)
    assert "'x.json'" in said and message in said


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("content", "message"),
    [
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
)
def test_a_broken_csv_file(refused, content, message):
    said = refused("x.csv", content=content)
    assert "'x.csv'" in said and message in said


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": ["x", "y"], "answer": [date(2020, 1, 2), None]}, "row 0: column 'answer' holds 2020-01-02, a date"),
        (
            {"prompt": ["x", "y"], "answer": [None, datetime(2020, 1, 2)]},
            "row 1: column 'answer' holds 2020-01-02 00",
        ),
        ({"prompt": ["x", "y"], "answer": [1.5, float("nan")]}, "row 1: column 'answer' holds nan, which is no answer"),
        ({"prompt": ["x", "y"], "answer": [float("inf"), 1.0]}, "row 0: column 'answer' holds inf, which is no answer"),
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


@pytest.fixture
def binary_files(tmp_path, monkeypatch):
    """Name → content of a file in each binary format."""
    monkeypatch.chdir(tmp_path)
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(200)])
    pyarrow.parquet.write_table(rows, "x.parquet")
    with pyarrow.OSFile("x.arrow", "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as out:
        out.write_table(rows)
    return {name: Path(name).read_bytes() for name in ("x.parquet", "x.arrow")}


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("damage", ["cut in its head", "cut in two", "empty", "text"])
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_damaged_binary_files(refused, binary_files, name, damage):
    whole = binary_files[name]
    contents = {"cut in its head": whole[:100], "cut in two": whole[: len(whole) // 2], "empty": b"", "text": GOOD}
    assert f"'{name}'" in refused(name, content=contents[damage])


@pytest.mark.hostile(KIND, "survived")
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


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("no.jsonl", [], "there is no file 'no.jsonl': check --dataset_name"),
        ("mine.jsonl", [], "there is no file 'mine.jsonl' (did you mean 'mined.jsonl'?)"),
        ("./mined", [], "there is no file './mined' (did you mean 'mined.jsonl'?)"),
        ("folder", [], "'folder' is a folder: give --dataset_name a .jsonl"),
        ("folder/", [], "of which it has in.csv"),
        ("mine.py", [], "'mine.py' is not a .jsonl"),
        ("math50", [], "there is no set 'math50' (did you mean 'math500'?)"),
        (
            "mined.jsonl",
            ["--prompt_column", "promt"],
            "no column 'promt' (did you mean 'prompt'?): set --prompt_column",
        ),
        ("mined.jsonl", ["--answer_column", "gold"], "no column 'gold': set --answer_column to one of prompt, answer"),
        ("mined.jsonl", ["--dataset_split", "test"], "leave out --dataset_revision, --dataset_config and"),
        ("mined.jsonl", ["--dataset_name", "cols.jsonl"], "'cols.jsonl' has no column 'prompt' or 'problem' or"),
        (
            "cols.jsonl",
            ["--prompt_column", "q", "--reward", "accuracy"],
            "has no column 'answer' or 'solution' or 'target': set --answer_column",
        ),
        ("gsm8k", ["--data_dir", "folder"], "no 'gsm8k' in 'folder'"),
        ("gsm8k", ["--data_dir", "sets"], "is not the set 'gsm8k': line 2: there is no column problem or question"),
        ("own/set", [], "--dataset_name 'own/set' cannot be loaded from the Hub"),
    ],
)
def test_a_name_that_is_wrong(refused, name, flags, message):
    for file in ("mined.jsonl", "folder/in.csv"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(GOOD)
    Path("cols.jsonl").write_text('{"q": "x", "level": 1}\n')
    Path("sets").mkdir()
    Path("sets/gsm8k.jsonl").write_text('\n{"q": "x", "answer": "#### 1"}\n')
    assert message in refused(name, *flags)


@pytest.mark.hostile(KIND, "refused")
def test_what_cannot_be_opened(refused, record_property):
    os.symlink("loop.jsonl", "loop.jsonl")
    os.symlink("nowhere.jsonl", "hanging.jsonl")
    os.mkfifo("pipe.jsonl")
    for name in ("loop.jsonl", "hanging.jsonl", "pipe.jsonl", "x" * 300 + ".jsonl", "a/" * 200 + "x.jsonl"):
        assert name in refused(name)
    record_property("tried", 5)


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("stem", ["a*b", "a[1]", "a?", "**", "{a,b}", "x=1", "a::b", "a b%20#"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "arrow"])
def test_a_name_is_one_file(tmp_path, monkeypatch, stem, kind):
    monkeypatch.chdir(tmp_path)
    Path("saved=1").mkdir()  # as a folder of a partitioned set is called
    for other in ("a1b", "a22b", "a1", "ab", "a", "b"):
        Path("saved=1", f"{other}.{kind}").write_bytes(GOOD * 8)
    rows = pyarrow.Table.from_pylist([{"prompt": f"{i}", "answer": f"{i}"} for i in range(3)])
    name = f"saved=1/{stem}.{kind}"
    if kind == "jsonl":
        Path(name).write_text("\n".join(map(json.dumps, rows.to_pylist())))
    elif kind == "json":
        Path(name).write_text(json.dumps(rows.to_pylist(), indent=1))
    elif kind == "csv":
        Path(name).write_text("prompt,answer\n0,0\n1,1\n2,2\n")
    elif kind == "parquet":
        with open(name, "wb") as file:
            pyarrow.parquet.write_table(rows, file)
    else:
        with pyarrow.OSFile(name, "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows)
    data = load_prompts(name, style="plain")
    assert data["prompt"] == ["0", "1", "2"] and data.column_names == ["prompt", "answer", "id"]


@pytest.mark.hostile(KIND, "survived")
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
def test_answers_keep_their_text(tmp_path, monkeypatch, column, literals, answers):
    monkeypatch.chdir(tmp_path)
    rows = [f'{{"prompt": "x", "{column}": {literal}, "date": "2020-01-02"}}' for literal in literals]
    for name, text in {"x.jsonl": "\r\n".join(rows), "x.json": "[" + ",\n".join(rows) + "]"}.items():
        for mark in (b"", b"\xef\xbb\xbf"):
            data = read(name, mark + text.encode())
            assert data["answer"] == answers and set(data["date"]) == {"2020-01-02"}, name


@pytest.mark.hostile(KIND, "survived")
def test_cells_of_csv_keep_their_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.hostile(KIND, "survived")
def test_parquet_types_are_what_they_are(tmp_path):
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
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x", "y"], name: array}), tmp_path / f"{name}.parquet")
        data = load_prompts(str(tmp_path / f"{name}.parquet"), style="plain", answer_column=name)
        assert data["answer"] == answers, name


@pytest.mark.hostile(KIND, "survived")
def test_rows_of_every_shape(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tool = {"type": "object", "properties": {"x": {"type": "number", "enum": [1.5, 2]}}}
    first, second = ({"role": role, "content": "s"} for role in ("system", "user"))
    rows = [
        {"prompt": [second], "answer": 1, "level": 3, "tools": [tool], "empty": {}, "no": []},
        {
            "prompt": [first, second],
            "answer": "x",
            "level": None,
        },
        {"prompt": [{"role": "user", "content": None}], "answer": None, "extra": [[True], []], "score": 0.25},
    ]
    data = read("x.jsonl", "\n".join(map(json.dumps, rows)).encode(), conversational=True)
    assert data["prompt"] == [row["prompt"] for row in rows] and data["answer"] == ["1", "x", None]
    assert data["level"] == [3, None, None] and data["extra"] == [None, None, [[True], []]]
    assert data["tools"] == [[tool | {"properties": {"x": {"type": "number", "enum": [1.5, 2.0]}}}], None, None]
    assert data["empty"] == [{}, None, None] and data["no"] == [[], None, None] and data["score"] == [None, None, 0.25]


@pytest.mark.hostile(KIND, "survived")
def test_nested_as_deep_as_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deep = '[{"a": ' * 15 + '["' + "[{" * 99 + '"]' + "}]" * 15
    data = read("x.jsonl", f'{{"prompt": "x", "answer": "2", "meta": {deep}}}\n'.encode() + GOOD)
    assert data["meta"] == [json.loads(deep), None]


@pytest.mark.hostile(KIND, "survived")
def test_a_huge_line_and_many_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    big = "x" * 50_000_000
    data = read("x.jsonl", json.dumps({"prompt": big, "answer": "2"}).encode() + b"\n" + GOOD * 30_000)
    assert len(data) == 30_001 and data[0]["prompt"] == big and data[30_000]["id"] == "x-30000"
