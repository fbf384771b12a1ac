"""The value of a swept setting that is best for each algorithm on the tuning seeds, by the primary metric."""

from typing import Any, NamedTuple

import numpy as np

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
    found = []
    for label, by_value in scores.items():
        values = list(by_value)
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        means = {value: float(np.mean(by_value[value])) for value in values}
        best = max(means, key=means.__getitem__)
        found.append(TunedRow(label, means, best, best in (values[0], values[-1])))
    return found


def edge_warnings(results: dict[str, Any]) -> list[str]:
    """A sentence for the algorithms whose best value is at the edge of the sweep; a sweep of texts has no edge."""
    rows = [row for row in tuned_rows(results) if row.is_at_edge and not isinstance(row.best, str)]
    at = ", ".join(f"{row.label} ({in_short(row.best)})" for row in rows)
    return [f"The best value is at the edge of the sweep: {at}. A better one may lie beyond: widen it."] if rows else []


def in_short(value: float | str) -> str:
    """A value as text: 0.0001 as "1e-4"."""
    if isinstance(value, str):
        return value
    mantissa, _, exponent = f"{value:.6g}".partition("e")
    if not exponent and (value == 0 or 1e-3 <= abs(value) < 1e6):
        return mantissa
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"
