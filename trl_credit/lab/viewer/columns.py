"""Lists of numbers as short text, which assets/data.js decodes to arrays.

A column is one of: `None`, unknown; a list `[value, count, value, count, …]` if values repeat; `"=name"`, equal to
another column; `"f…"`, base64 of floats of three bytes (four to five digits, NaN for unknown); `"b…"`, base64 of bytes;
`"u…"`, base64 of unsigned integers of three bytes. Three bytes are four characters of base64 without padding.
"""

import base64
from collections.abc import Sequence

import numpy as np


Column = str | list[float | None] | None


def encode_numbers(values: Sequence[float | None] | None) -> Column:
    """Encodes a list of numbers, in which `None` is an unknown one.

    Raises:
        ValueError: an entry is not a number that a float64 holds.
    """
    if values is None:
        return None
    try:
        array = np.array(values, dtype=np.float64)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"not a list of numbers: {error}") from error
    array[~np.isfinite(array)] = np.nan
    if (runs := _runs(array)) is not None:
        return runs
    if np.all((array >= 0) & (array <= 255) & (array == np.floor(array))):
        return "b" + base64.b64encode(array.astype(np.uint8).tobytes()).decode("ascii")
    largest = float(np.finfo(np.float32).max) / 2
    bits = np.clip(array, -largest, largest).astype("<f4").view("<u4")
    rounded = np.where(np.isnan(array), bits, bits + 0x80).astype("<u4")
    return "f" + _three_bytes(rounded, slice(1, 4))


def encode_indices(values: Sequence[int]) -> str:
    """Encodes indices into a table, each below 2^24."""
    return "u" + _three_bytes(np.array(values, dtype="<u4"), slice(0, 3))


def _runs(array: np.ndarray) -> list[float | None] | None:
    """Run-length encoding; `None` if it is hardly shorter than the values."""
    if len(array) == 0:
        return []
    same = (array[1:] == array[:-1]) | (np.isnan(array[1:]) & np.isnan(array[:-1]))
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
    if len(starts) > max(1, len(array) // 4):
        return None
    runs: list[float | None] = []
    for value, count in zip(array[starts].tolist(), np.diff(starts, append=len(array)).tolist(), strict=True):
        runs += [None if np.isnan(value) else int(value) if value.is_integer() else float(f"{value:.6g}"), count]
    return runs


def _three_bytes(words: np.ndarray, which: slice) -> str:
    return base64.b64encode(words.view(np.uint8).reshape(-1, 4)[:, which].tobytes()).decode("ascii")
