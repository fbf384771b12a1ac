"""From rows as they were written to columns of one type each: nothing is guessed, and no number loses a digit."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value, concatenate_datasets

from .records import WIDEST, Real, Records, refuse


_PIECE = 10_000  # rows: a piece of a text column must hold less than 2 GiB, and datasets hashes a copy of each
_INTEGERS = range(-(2**63), 2**63)


def answer_text(answer: object) -> str | None:
    """An answer as text: numbers with the digits they were written with, the entries of a list with commas.

    Raises:
        ValueError: it is neither text nor a number (a date, an object), or no finite number.
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
        raise ValueError(f"{value}, which is no answer")
    return str(value)


def to_dataset(records: Records, columns: Sequence[str], *, textual: Sequence[str] = ()) -> Dataset:
    """The columns of a text file as a data set: text, whole numbers of 64 bits, numbers of double precision, truth
    values, and lists and objects of these.

    Args:
        records ([`Records`]):
            The rows.
        columns (sequence of `str`):
            Which of their columns.
        textual (sequence of `str`, *optional*):
            Columns that become text where they have no such type, as answers do.

    Raises:
        ValueError: a column with values of different types, or a number that has no exact place in its column; the
            message names file, line and column.
    """
    features, found = {}, {}
    for column in columns:
        values = records[column]
        try:
            features[column], found[column] = _typed(values, records.lines, records.path, column)
        except ValueError:
            if column not in textual:
                raise
            features[column], found[column] = Value("string"), list(map(answer_text, values))
    return in_pieces(len(records), features, lambda part: {name: values[part] for name, values in found.items()})


def in_pieces(rows: int, features: dict[str, Any], columns: Callable[[slice], dict[str, list]]) -> Dataset:
    """A data set of `rows` rows, of which `columns` gives those of a slice: what it makes lives no longer than that."""
    pieces = [
        Dataset.from_dict(columns(slice(i, min(i + _PIECE, rows))), Features(features)) for i in range(0, rows, _PIECE)
    ]
    return concatenate_datasets(pieces)


def _typed(values: list, lines: Sequence[int], path: str, name: str) -> tuple[Any, list]:
    """The feature of a column and its values as Arrow takes them; `lines` says where each value comes from."""
    kinds: dict[str, int] = {}
    for value, line in zip(values, lines, strict=True):
        if value is not None:
            kinds.setdefault(_kind(value), line)
    if len(kinds) > 1:
        (one, line), (other, later) = list(kinds.items())[:2]
        refuse(path, later, f"column {name!r} holds {other}, and {one} in line {line}: write all rows alike")
    kind = next(iter(kinds), None)
    if kind == "a number":
        return _numbers(values, lines, path, name)
    if kind == "a list":
        inner, where = _flat(values, lines)
        feature, inner = _typed(inner, where, path, name)
        rest = iter(inner)
        return [feature], [None if v is None else [next(rest) for _ in v] for v in values]
    if kind == "an object":
        feature, fields = {}, {}
        keys = dict.fromkeys(key for value in values if value is not None for key in value)
        if len(keys) > WIDEST:
            refuse(
                path, lines[0], f"the objects of column {name!r} have {len(keys):,} different keys: write them as text"
            )
        for key in keys:
            inner = [None if value is None else value.get(key) for value in values]
            feature[key], fields[key] = _typed(inner, lines, path, f"{name}.{key}")
        rows = zip(*fields.values(), strict=True) if fields else ([] for _ in values)
        return feature, [
            None if value is None else dict(zip(fields, row, strict=True))
            for value, row in zip(values, rows, strict=True)
        ]
    return Value({None: "null", "text": "string", "a truth value": "bool"}[kind]), values


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def _flat(values: list, lines: Sequence[int]) -> tuple[list, list[int]]:
    pairs = [(x, line) for value, line in zip(values, lines, strict=True) if value is not None for x in value]
    return [x for x, _ in pairs], [line for _, line in pairs]


def _numbers(values: list, lines: Sequence[int], path: str, name: str) -> tuple[Value, list]:
    whole = not any(isinstance(value, Real) for value in values)
    for value, line in zip(values, lines, strict=True):
        if value is not None and not (value in _INTEGERS if whole else _is_exact(value)):
            what = "whole numbers of 64 bits" if whole else "numbers with a point, of 64 bits"
            refuse(path, line, f"column {name!r} holds {what}, and {_shown(value)} would lose digits: write it as text")
    if whole:
        return Value("int64"), values
    return Value("float64"), [None if value is None else float(value) for value in values]


def _is_exact(value: int | Real) -> bool:
    """Whether the float is written with the number's own digits, as `0.1` is, though not in base 2."""
    try:
        near = float(value)
        return repr(near) == str(value) or Decimal(repr(near)) == Decimal(str(value))
    except (OverflowError, InvalidOperation):  # beyond all exponents
        return False


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
