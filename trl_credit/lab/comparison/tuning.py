"""The value of a swept setting that is best for each algorithm on the tuning seeds, by the primary metric."""

import re
from typing import Any, NamedTuple

import numpy as np

from .entries import in_order
from .grid import TUNING


class TunedRow(NamedTuple):
    """The sweep of one algorithm.

    Attributes:
        label: The algorithm.
        scores: Mean of the primary metric over the tuning seeds by value, in the order of the values.
        best: The value with the highest mean, the first one of several.
        is_at_edge: Whether that is the lowest or the highest value of the sweep, so that a better one may lie beyond.
    """

    label: str
    scores: dict[float | str, float]
    best: float | str
    is_at_edge: bool


def tuned_rows(results: dict[str, Any]) -> list[TunedRow]:
    """The sweep of each algorithm, from the fields "runs" and "primary" of `results.json`.

    Numbers are ordered by size, texts as they come. Values without a finished run are left out.
    """
    scores: dict[str, dict[float | str, list[float]]] = {}
    for run in results["runs"]:
        if run["phase"] == TUNING:
            by_value = scores.setdefault(run["label"], {})
            by_value.setdefault(run["value"], []).append(run[results["primary"]])
    rows = []
    for label, by_value in scores.items():
        means = {value: float(np.mean(by_value[value])) for value in in_order(by_value)}
        best, values = max(means, key=means.__getitem__), list(means)
        rows.append(TunedRow(label, means, best, best in (values[0], values[-1])))
    return rows


def in_short(value: float | str) -> str:
    """A value as text: 0.00005 as "5e-5"."""
    return value if isinstance(value, str) else re.sub(r"e-0", "e-", f"{value:g}")
