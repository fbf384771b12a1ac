"""Lists of numbers as short text, which assets/data.js turns into arrays again.

A column is one of: `None`, unknown; a list `[value, count, value, count, …]` where values repeat; `"=name"`, the same
as another column; `"f…"`, base64 of floats of three bytes (four to five digits; NaN where unknown);
`"b…"`, base64 of bytes; `"u…"`, base64 of whole numbers of three bytes. Three bytes are four characters, without rest.
"""

import base64
from collections.abc import Sequence

import numpy as np


Coded = str | list[float | None] | None


def code_numbers(values: Sequence[float | None] | None) -> Coded:
    """Of a list of numbers; `None` in it stands for what is unknown.

    Raises:
        ValueError: a number that no float holds.
    """
    if values is None:
        return None
    try:
        array = np.array(values, dtype=np.float64)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a list of numbers holds something else: {error}") from error
    array[~np.isfinite(array)] = np.nan
    if (runs := _runs(array)) is not None:
        return runs
    if np.all((array >= 0) & (array <= 255) & (array == np.floor(array))):
        return "b" + base64.b64encode(array.astype(np.uint8).tobytes()).decode("ascii")
    largest = float(np.finfo(np.float32).max) / 2
    bits = np.clip(array, -largest, largest).astype("<f4").view("<u4")
    rounded = np.where(np.isnan(array), bits, bits + 0x80).astype("<u4")
    return "f" + _upper_bytes(rounded, slice(1, 4))


def code_places(values: Sequence[int]) -> str:
    """Of places in a table, each below 2^24."""
    return "u" + _upper_bytes(np.array(values, dtype="<u4"), slice(0, 3))


def _runs(array: np.ndarray) -> list[float | None] | None:
    """Values and how often they repeat, where that is shorter than the values."""
    if len(array) == 0:
        return []
    same = (array[1:] == array[:-1]) | (np.isnan(array[1:]) & np.isnan(array[:-1]))
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
    if len(starts) > max(1, len(array) // 4):
        return None
    runs: list[float | None] = []
    for start, end in zip(starts, [*starts[1:], len(array)], strict=True):
        value = float(array[start])
        runs += [
            None if np.isnan(value) else int(value) if value.is_integer() else float(f"{value:.6g}"),
            int(end - start),
        ]
    return runs


def _upper_bytes(words: np.ndarray, which: slice) -> str:
    return base64.b64encode(words.view(np.uint8).reshape(-1, 4)[:, which].tobytes()).decode("ascii")
