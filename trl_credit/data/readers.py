"""Rows of data files: text stays text, errors name the file and the line or the column."""

import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
from datasets import Dataset
from pyarrow.parquet import ParquetFile

from ..support.errors import one_line


FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
# what pyarrow and datasets raise for a file or folder with arbitrary content
DAMAGED = (ValueError, OSError, KeyError, TypeError, AttributeError, NotImplementedError, MemoryError)
IDS = ("id", "unique_id")
# columns of a JSON file that become text if their values have no common type
_TEXTUAL = (*IDS, "answer", "solution", "target", "final_answer")


class Literal(float):
    """A JSON number with a point or an exponent. `str` gives its text in the file, with digits that a float loses."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def read_file(path: str) -> Dataset:
    """Reads exactly this file: its name is not a pattern, and nothing is cached.

    All columns of a CSV file are text. Columns of a JSON file have the types that Arrow infers. Numbers in its columns
    `answer`, `id` and `unique_id` keep the digits that they are written with.

    Raises:
        ValueError: the file has no rows or cannot be read; the message names the file.
        OSError: the file cannot be opened.
    """
    with open(path, "rb"):  # a file that cannot be opened is an OSError, not a damaged file
        pass
    kind = FILE_FORMATS[Path(path).suffix.lower()]
    try:
        table = {"json": _read_json, "csv": _read_csv, "parquet": lambda path: ParquetFile(path).read()}[kind](path)
        table.validate(full=True)  # offsets that point elsewhere would crash the process
        if twice := next((name for name in table.column_names if table.column_names.count(name) > 1), None):
            raise ValueError(f"two columns are called {twice!r}: rename one")
        data = Dataset(table)
    except DAMAGED as error:
        raise ValueError(f"{path!r} cannot be read as {kind}: {one_line(error)}") from error
    if len(data) == 0:
        raise ValueError(f"{path!r} has no rows")
    return data


def _read_csv(path: str) -> pyarrow.Table:
    # one block, since a row must lie in a block; one thread, since errors then have the number of the row
    reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=os.path.getsize(path) + 1)
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
    header = pyarrow.csv.open_csv(path, read_options=reading, parse_options=parsing).schema.names
    converting = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header, pyarrow.string()))
    return pyarrow.csv.read_csv(path, reading, parsing, converting)


def _read_json(path: str) -> pyarrow.Table:
    """Reads an object per line, or one list of objects. A row that is a list itself has the columns `0`, `1`, …"""
    text = Path(path).read_bytes().decode("utf-8-sig")
    is_list = text.lstrip().startswith("[")
    rows: list[dict[str, Any]] = []
    for line, part in [(1, text)] if is_list else enumerate(text.split("\n"), start=1):
        if part.strip():
            try:
                value = json.loads(part, parse_float=Literal)
            except (ValueError, RecursionError) as error:
                line += getattr(error, "lineno", 1) - 1
                what = getattr(error, "msg", error)
                raise ValueError(f"line {line}: {what}: correct the line, or remove it") from error
            rows += value if is_list else [value]
    if is_list:
        rows = [{str(i): x for i, x in enumerate(row)} if isinstance(row, list) else row for row in rows]
    if others := [i for i, row in enumerate(rows) if not isinstance(row, dict)]:
        raise ValueError(f"row {others[0]} is no object: a row is like {{'prompt': …, 'answer': …}}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pyarrow.table({name: _json_column(name, [row.get(name) for row in rows]) for name in names})


def _json_column(name: str, values: list[Any]) -> pyarrow.Array | pyarrow.ChunkedArray:
    keeps_digits = name in (*IDS, "answer") and any(isinstance(value, Literal) for value in values)
    try:
        try:
            if not keeps_digits:
                return pyarrow.array(values)
        except (pyarrow.ArrowException, ValueError, OverflowError):
            if name not in _TEXTUAL:
                raise
        return pyarrow.array(map(answer_text, values), pyarrow.string())
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        raise ValueError(f"column {name!r}: {error}: use one type, or write all rows as text") from error


def answer_text(answer: object) -> str | None:
    """An answer as text: numbers with the digits they were written with, the entries of a list with commas.

    Raises:
        ValueError: the answer is neither text nor a number (a date, an object), or not finite.
    """
    if answer is None:
        return None
    if isinstance(answer, list) and None not in answer:
        return ", ".join(map(answer_text, answer))
    if not isinstance(answer, str | int | float | Decimal | np.number):
        raise ValueError(f"{str(answer)[:40]}, a {type(answer).__name__} and neither text nor a number")
    if isinstance(answer, float | np.floating) and not isinstance(answer, Literal) and not math.isfinite(answer):
        raise ValueError(f"{answer}, which is not an answer")
    return str(answer)
