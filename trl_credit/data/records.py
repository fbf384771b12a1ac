"""Rows of JSON Lines, JSON and CSV files as they were written: text as text, numbers with all their digits."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn


WIDEST = 1000  # columns; where each row has names of its own, the table grows with the square of the rows
DEEPEST = 32  # levels of lists and objects in a row: Arrow dies of thousands, and datasets cannot hash 60
_SPACE = " \t\r\n"  # JSON's
_BLANK = re.compile(f"[{_SPACE}]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_UTF8_MARK = b"\xef\xbb\xbf"
# the first bytes of files that some program calls text, or that were renamed
_NO_TEXT = {
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it",
}


class Real(float):
    """A JSON number with a point or an exponent. `str` gives its text in the file, of which a float loses digits."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> "Real":
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __str__(self) -> str:
        return self.text


class Records:
    """The rows of a text file, each with every column of the file (`None` where a row lacks it).

    Args:
        path (`str`):
            Of the file, for messages.
        rows (`list[dict]`):
            JSON's values; numbers are `int` or [`Real`]. Of a CSV file, text.
        lines (`list[int]`):
            Where each row begins, counted from 1.
    """

    def __init__(self, path: str, rows: list[dict[str, Any]], lines: list[int]) -> None:
        self.path, self.lines = path, lines
        names: dict[str, None] = {}
        for row, line in zip(rows, lines, strict=True):
            names.update(dict.fromkeys(row))
            if len(names) > WIDEST:
                refuse(path, line, f"the rows have more than {WIDEST:,} different columns: put them into one")
        self.column_names = list(names)
        blank = dict.fromkeys(self.column_names)
        self.rows = [row if len(row) == len(blank) else {**blank, **row} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        return [row[column] for row in self.rows]


def read_records(path: str) -> Records:
    """The rows of a file; `.csv` is CSV, all else is JSON: an object per line, or one list of objects.

    Raises:
        ValueError: a line that cannot be read, or would be read as something else than was written; the message names
            file and line.
        OSError: the file cannot be opened.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    for mark, what in _NO_TEXT.items():
        if start.startswith(mark):
            raise ValueError(f"{path!r} is no plain text but {what}")
    rows, lines = [], []
    for line, row in _csv_rows(path) if path.lower().endswith(".csv") else _json_rows(path):
        rows.append(row)
        lines.append(line)
    return Records(path, rows, lines)


def refuse(path: str, line: int, why: object) -> NoReturn:
    raise ValueError(f"{path!r}, line {line}: {why}") from None


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, "rb") as file:
        first = True
        for line, data in enumerate(file, start=1):
            text = _decoded(data.removeprefix(_UTF8_MARK) if line == 1 else data, path, line).strip(_SPACE)
            if text == "":
                continue
            if first and text.startswith("["):
                file.seek(0)
                yield from _json_list(_decoded(file.read().removeprefix(_UTF8_MARK), path, 1), path)
                return
            first = False
            row, end = _json_value(text, 0, path, line)
            if end < len(text):
                refuse(path, line, f"{text[end:].strip()[:20]!r} follows the object: a line holds one row")
            yield line, _checked(row, text, path, line)


def _json_list(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows one by one, so that each has its line. A row that is a list itself has the columns `0`, `1`, …"""
    at, line, counted = _BLANK.match(text).end(), 1, 0
    expected = "["
    while True:
        line, counted = line + text.count("\n", counted, at), at
        sign = text[at : at + 1]
        if sign == "" or sign not in expected:
            refuse(path, line, f"{' or '.join(map(repr, expected))} is expected in the list of rows, not {sign!r}")
        at = _BLANK.match(text, at + 1).end()
        if sign == "]" or (sign == "[" and text[at : at + 1] == "]"):
            break
        line, counted = line + text.count("\n", counted, at), at
        row, end = _json_value(text, at, path, line)
        if isinstance(row, list):
            row = {str(i): value for i, value in enumerate(row)}
        yield line, _checked(row, text[at : at + 40], path, line)
        at, expected = _BLANK.match(text, end).end(), ",]"
    at += sign == "["  # an empty list
    if text[at:].strip(_SPACE):
        refuse(path, line + text.count("\n", counted, at), "something follows the list of rows: a file holds one list")


def _checked(row: object, text: str, path: str, line: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        refuse(path, line, f'{text[:20]!r} is no object: a row is like {{"prompt": …, "answer": …}}')
    return row


def _json_value(text: str, at: int, path: str, line: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, at)
        if _SURROGATE.search(text, at, end):
            json.dumps(value, ensure_ascii=False).encode()
        # most rows have fewer brackets than that, in text or not
        if text.count("[", at, end) + text.count("{", at, end) > DEEPEST and _depth(value) > DEEPEST:
            raise RecursionError
    except json.JSONDecodeError as error:
        # in a list of rows, the error is at a line of its own
        line += text.count("\n", at, error.pos)
        shown = text[error.pos : error.pos + 20].partition("\n")[0]
        why = error.msg.removesuffix(" at")
        refuse(path, line, f"{why} at character {error.colno}, {shown!r}: mend the line, or take it out")
    except RecursionError:
        refuse(path, line, f"it is nested more than {DEEPEST} deep")
    except UnicodeEncodeError as error:
        refuse(path, line, f"{error.object[error.start]!r} is half of a surrogate pair, which is no character")
    except ValueError as error:
        refuse(path, line, error)
    return value, end


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while nested := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [child for each in nested for child in (each.values() if isinstance(each, dict) else each)]
    return depth


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice in one object")
    return found


def _integer(text: str) -> int | Real:
    try:
        return Real(text) if text == "-0" else int(text)
    except ValueError:  # Python's own limit, since the time grows with the square of the digits
        raise ValueError(f"a number of {len(text):,} digits: write it as text, in quotes") from None


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON: write null, or take the row out")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=Real, parse_constant=_constant, strict=True
)


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    header: list[str] | None = None
    limit = csv.field_size_limit(sys.maxsize)  # 128 KiB would do for most prompts
    try:
        reader = csv.reader(_csv_lines(path), strict=True)
        while True:
            begin = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                refuse(path, begin, f"{error}: quotes in a quoted cell are doubled, and cells are apart by commas")
            if cells is None:
                return
            if not cells:
                continue
            if header is None:
                # pandas' name for the column of row numbers that it writes without one
                header = [name or f"Unnamed: {i}" for i, name in enumerate(cells)]
                if twice := next((name for name in header if header.count(name) > 1), None):
                    refuse(path, begin, f"two columns are called {twice!r}: rename one")
                continue
            if len(cells) != len(header):
                refuse(path, begin, f"{len(cells)} cells, but the header has {len(header)}: quote cells with commas")
            yield begin, dict(zip(header, cells, strict=True))
    finally:
        csv.field_size_limit(limit)


def _csv_lines(path: str) -> Iterator[str]:
    with open(path, "rb") as file:
        for line, data in enumerate(file, start=1):
            text = _decoded(data.removeprefix(_UTF8_MARK) if line == 1 else data, path, line)
            if "\0" in text:
                refuse(path, line, "a NUL byte, which no text has: write the file anew")
            yield text


def _decoded(data: bytes, path: str, line: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        refuse(
            path, line, f"byte 0x{data[error.start]:02x} is no UTF-8: save the file as UTF-8 (iconv -f latin1 -t utf-8)"
        )
