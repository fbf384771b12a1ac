"""Rows of data files as they were written: text stays text, numbers keep their digits, errors name the line."""

import csv
import io
import json
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow
from datasets import Dataset
from pyarrow.parquet import ParquetFile


FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
# what pyarrow and datasets raise for a file or folder with arbitrary content
DAMAGED = (ValueError, OSError, KeyError, TypeError, AttributeError, NotImplementedError, MemoryError)
WIDEST = 1000  # different keys of a JSON file; if each row has keys of its own, the table grows quadratically
DEEPEST = 32  # levels of lists and objects in a row: Arrow crashes at thousands, and datasets cannot hash 60
_SPACE = " \t\r\n"  # JSON's
_BLANK = re.compile(f"[{_SPACE}]*")
_SEPARATOR = re.compile(rf"[{_SPACE}]*([,\]])")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# the first bytes of files that some programs call text, or that were renamed
_NOT_TEXT = {
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it",
}


class Real(float):
    """A JSON number with a point or an exponent. `str` gives its text in the file, with digits that a float loses."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@dataclass
class Records:
    """The rows of a text file, each with every column of the file (`None` if a row lacks it).

    Args:
        path (`str`):
            The file, for messages.
        rows (`list[dict]`):
            JSON values, with numbers as `int` or [`Real`]; text if the file is CSV.
        lines (`list[int]`):
            Line on which each row begins, counted from 1.
    """

    path: str
    rows: list[dict[str, Any]]
    lines: list[int]

    @cached_property
    def column_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({name: row.get(name) for name in self.column_names} for row in self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        return [row.get(column) for row in self.rows]


def read_file(path: str) -> Dataset | Records:
    """Reads exactly this file: its name is not a pattern, and nothing is cached.

    Raises:
        ValueError: the file has no rows or cannot be read; the message names the file.
        OSError: the file cannot be opened.
    """
    kind = FILE_FORMATS[Path(path).suffix.lower()]
    data = _read_table(path, kind) if kind in ("parquet", "arrow") else read_records(path)
    if len(data) == 0:
        raise ValueError(f"{path!r} has no rows")
    return data


def _read_table(path: str, kind: str) -> Dataset:
    with open(path, "rb"):  # a file that cannot be opened is an OSError, not a damaged file
        pass
    try:
        file = pyarrow.memory_map(path)
        table = ParquetFile(file).read() if kind == "parquet" else _read_arrow(file)
        table.validate(full=True)  # offsets that point elsewhere would crash the process
        _check_distinct(table.column_names)
        return Dataset(table)
    except DAMAGED as error:
        raise ValueError(f"{path!r} cannot be read as {kind}: {error}") from error


def _read_arrow(file: pyarrow.MemoryMappedFile) -> pyarrow.Table:
    """Reads the stream format, which `datasets` writes, or the file format."""
    try:
        return pyarrow.ipc.open_stream(file).read_all()
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_file(file).read_all()


def _check_distinct(columns: Sequence[str]) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise ValueError(f"two columns are called {twice!r}: rename one")


def place(source: Dataset | Records, row: int) -> str:
    """Where a row stands: its line, or its number if the source has no lines."""
    return f"line {source.lines[row]}" if isinstance(source, Records) else f"row {row}"


def read_records(path: str) -> Records:
    """Reads the rows of a text file: `.csv` is CSV; anything else is JSON, an object per line or one list of objects.

    Raises:
        ValueError: a line cannot be read exactly as it was written; the message names file and line.
        OSError: the file cannot be opened.
    """
    text = _read_text(path)
    if path.lower().endswith(".csv"):
        rows = _csv_rows(text, path)
    elif text.lstrip(_SPACE).startswith("["):
        rows = _json_list(text, path)
    else:
        rows = _json_lines(text, path)
    records = Records(path, [], [])
    for line, row in rows:
        if not isinstance(row, dict):
            refuse(path, line, f'{str(row)[:20]!r} is not an object: a row is like {{"prompt": …, "answer": …}}')
        records.rows.append(row)
        records.lines.append(line)
    return records


def refuse(path: str, line: int, why: object) -> NoReturn:
    raise ValueError(f"{path!r}, line {line}: {why}") from None


def _read_text(path: str) -> str:
    data = Path(path).read_bytes()
    for mark, what in _NOT_TEXT.items():
        if data.startswith(mark):
            raise ValueError(f"{path!r} is not plain text but {what}")
    data = data.removeprefix(b"\xef\xbb\xbf")  # byte order mark
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = 1 + data.count(b"\n", 0, error.start), data[error.start]
        refuse(path, line, f"byte 0x{byte:02x} is not UTF-8: save the file as UTF-8 (iconv -f latin1 -t utf-8)")


def _json_lines(text: str, path: str) -> Iterator[tuple[int, Any]]:
    decoder = _json_decoder()
    for line, row in enumerate(io.StringIO(text, newline="\n"), start=1):
        row = row.strip(_SPACE)
        if row:
            value, end = _decode(decoder, row, 0, path, line)
            if end < len(row):
                refuse(path, line, f"{row[end:].strip()[:20]!r} follows the row: write one row per line")
            yield line, value


def _json_list(text: str, path: str) -> Iterator[tuple[int, Any]]:
    """Rows one by one, so that each has its line. A row that is a list itself has the columns `0`, `1`, …"""
    decoder = _json_decoder()
    at, line, counted = text.index("[") + 1, 1, 0
    end = _SEPARATOR.match(text, at)
    while end is None or end[1] != "]":
        at = _BLANK.match(text, at).end()
        line, counted = line + text.count("\n", counted, at), at
        row, at = _decode(decoder, text, at, path, line)
        yield line, dict(zip(map(str, range(len(row))), row, strict=True)) if isinstance(row, list) else row
        end = _SEPARATOR.match(text, at)
        if end is None:
            line += text.count("\n", counted, _BLANK.match(text, at).end())
            refuse(path, line, "',' or ']' is expected after a row of the list")
        at = end.end()
    rest = _BLANK.match(text, end.end()).end()
    if rest < len(text):
        refuse(path, 1 + text.count("\n", 0, rest), "text follows the list of rows: a file holds one list")


def _decode(decoder: json.JSONDecoder, text: str, at: int, path: str, line: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, which is on `line`, and where it ends."""
    try:
        value, end = decoder.raw_decode(text, at)
        if _SURROGATE.search(text, at, end):
            json.dumps(value, ensure_ascii=False).encode()
        # most rows have fewer brackets, whether in text or not
        if text.count("[", at, end) + text.count("{", at, end) > DEEPEST and _depth(value) > DEEPEST:
            raise RecursionError
    except json.JSONDecodeError as error:
        line += text.count("\n", at, error.pos)
        shown = text[error.pos : error.pos + 20].partition("\n")[0]
        refuse(path, line, f"{error.msg} (character {error.colno}, {shown!r}): correct the line, or remove it")
    except RecursionError:
        refuse(path, line, f"it is nested more than {DEEPEST} deep")
    except UnicodeEncodeError as error:
        refuse(path, line, f"{error.object[error.start]!r} is half of a surrogate pair, which is not a character")
    except ValueError as error:
        refuse(path, line, error)
    return value, end


def _depth(value: object) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _json_decoder() -> json.JSONDecoder:
    """A decoder for the rows of one file that refuses what JSON readers otherwise change silently."""
    keys: set[str] = set()

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key!r} occurs twice in one object")
            found[key] = value
        keys.update(found)
        if len(keys) > WIDEST:
            raise ValueError(f"the rows have more than {WIDEST:,} different keys: write the objects as text")
        return found

    def read_integer(text: str) -> int | Real:
        try:
            return Real(text) if text == "-0" else int(text)
        except ValueError:  # Python's own limit, since the time grows with the square of the digits
            raise ValueError(f"a number of {len(text):,} digits: write it as text, in quotes") from None

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number: write null, or remove the row")

    return json.JSONDecoder(
        object_pairs_hook=read_object, parse_int=read_integer, parse_float=Real, parse_constant=refuse_constant
    )


def _csv_rows(text: str, path: str) -> Iterator[tuple[int, dict[str, str]]]:
    if "\0" in text:
        refuse(path, 1 + text.count("\n", 0, text.index("\0")), "a NUL byte: write the file again as plain text")
    limit = csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too short for some prompts
    reader = csv.reader(io.StringIO(text, newline="\n"), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            if cells and not header:
                # pandas writes its column of row numbers without a name, and reads it under this one
                header = [name or f"Unnamed: {i}" for i, name in enumerate(cells)]
                _check_distinct(header)
            elif cells and len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells, but the header has {len(header)}: quote cells with commas")
            elif cells:
                yield line, dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        refuse(path, line, f"{error}: double the quotes in a quoted cell, and separate cells by commas")
    except ValueError as error:
        refuse(path, line, error)
    finally:
        csv.field_size_limit(limit)


def answer_text(answer: object) -> str | None:
    """An answer as text: numbers with the digits they were written with, the entries of a list with commas.

    Raises:
        ValueError: the answer is neither text nor a number (a date, an object), or not finite.
    """
    if answer is None:
        return None
    if isinstance(answer, list):
        return ", ".join(map(_scalar_text, answer))
    return _scalar_text(answer)


def _scalar_text(value: object) -> str:
    if not isinstance(value, str | int | float | Decimal | np.number):
        raise ValueError(f"{_shown(value)}, a {type(value).__name__} and neither text nor a number")
    if isinstance(value, float | np.floating) and not isinstance(value, Real) and not math.isfinite(value):
        raise ValueError(f"{value}, which is not an answer")
    return str(value)


def to_dataset(records: Records, columns: Sequence[str], *, textual: Sequence[str] = ()) -> Dataset:
    """Columns of a text file as a data set, with the types that Arrow infers for them.

    Args:
        records ([`Records`]):
            The rows.
        columns (sequence of `str`):
            The columns to convert.
        textual (sequence of `str`, *optional*):
            Columns that become text if their values have no common type or would lose digits.

    Raises:
        ValueError: a column has values of different types, or a number that would lose digits; the message names file,
            line and column.
    """
    arrays = {}
    for name in columns:
        values = records[name]
        arrays[name] = _array(values)
        misfit = _misfit(values, arrays[name])
        if misfit is not None and name in textual:
            arrays[name] = pyarrow.array(map(answer_text, values), pyarrow.string())
        elif misfit is not None:
            row, why = misfit
            refuse(records.path, records.lines[row], f"column {name!r}: {why}: use one type, or write all rows as text")
    return Dataset(pyarrow.table(arrays))


def _array(values: list) -> pyarrow.Array | pyarrow.ChunkedArray | Exception:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError) as error:
        return error


def _misfit(values: list, array: pyarrow.Array | pyarrow.ChunkedArray | Exception) -> tuple[int, object] | None:
    """The first row that keeps a column from having one type without loss, and why; `None` if there is none."""
    if isinstance(array, Exception):
        # a column fails from the first row on that does not fit
        ends = range(1, len(values) + 1)
        return bisect_left(ends, True, key=lambda end: isinstance(_array(values[:end]), Exception)), array
    for row, value in enumerate(values if "double" in str(array.type) else ()):
        if (number := _changed(value, array.type)) is not None:
            return row, f"{_shown(number)} is not exact in double precision"
    return None


def _changed(value: Any, kind: pyarrow.DataType) -> object:
    """The first number in `value` that is not the same in double precision, or `None`."""
    if value is None:
        return None
    if pyarrow.types.is_struct(kind):
        inside = [(value.get(field.name), field.type) for field in kind]
    elif pyarrow.types.is_list(kind):
        inside = [(item, kind.value_type) for item in value]
    else:
        return value if pyarrow.types.is_floating(kind) and not _is_exact(value) else None
    return next((number for pair in inside if (number := _changed(*pair)) is not None), None)


def _is_exact(number: int | Real) -> bool:
    """Whether the float prints with the same digits as the number. True for `0.1`, although base 2 rounds it."""
    try:
        return Decimal(repr(float(number))) == Decimal(str(number))
    except (OverflowError, InvalidOperation):  # an exponent out of range, or `True` among numbers
        return False


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
