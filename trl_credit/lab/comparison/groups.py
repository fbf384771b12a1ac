"""Runs of one algorithm: their curves on a common axis, and their scores at the point that all runs have reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...runs.identity import differences, in_words
from .histories import AXES, History


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm with the same settings and different seeds.

    `value` is that of the setting that was swept, `None` without a sweep.
    """

    label: str
    runs: tuple[History, ...]
    value: float | str | None = None

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [run.seed for run in self.runs]


class Curve(NamedTuple):
    """Curve of a group: x, the mean over its runs, and the lowest and highest run, shape (points,)."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def group_runs(runs: Sequence[History]) -> list[Group]:
    """Groups runs by algorithm. Runs of one algorithm with different settings form groups named by the differences.

    Raises:
        ValueError: two runs of a group have the same seed.
    """
    by_algorithm: dict[str, list[list[History]]] = {}
    for run in runs:
        credit = f" with credit {run.credit['name']}" if run.credit.get("is_own") else ""
        variants = by_algorithm.setdefault(f"{run.identity['algorithm']}{credit}", [])
        same = next((v for v in variants if not differences(v[0].settings, run.settings, defaults={})), None)
        if same is None:
            variants.append([run])
        else:
            same.append(run)
    return [
        make_group(algorithm + _what_differs(variant[0], [v[0] for v in variants if v is not variant]), variant)
        for algorithm, variants in by_algorithm.items()
        for variant in variants
    ]


def make_group(label: str, runs: Sequence[History], value: float | str | None = None) -> Group:
    """A group of runs, ordered by seed. Raises `ValueError` if two runs have the same seed."""
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in zip(ordered, ordered[1:], strict=False):
        if one.seed == other.seed:
            raise ValueError(f"{one.folder} and {other.folder} are runs of {label} with seed {one.seed}: leave out one")
    return Group(label, tuple(ordered), value)


def _what_differs(run: History, others: Sequence[History]) -> str:
    names = {name for other in others for name in differences(other.settings, run.settings, defaults={})}
    values = {name: [None, run.settings.get(name)] for name in sorted(names)}
    return f" ({in_words(values).replace('null → ', '')})" if values else ""


def common_axes(groups: Sequence[Group]) -> list[str]:
    """The names of `AXES` that every run has."""
    return [name for name in AXES if all(name in run.axes for group in groups for run in group.runs)]


def reach(groups: Sequence[Group], axis: str) -> float:
    """The point on an axis that all runs have reached."""
    return min(run.totals[axis] for group in groups for run in group.runs)


def curve(group: Group, axis: str, *, points: int = 200) -> Curve:
    """The smoothed curve of a group on an axis, over the range that all of its runs cover."""
    lines = [(run.axes[axis], smoothed(run.values)) for run in group.runs]
    x = lines[0][0]
    if any(len(other) != len(x) or not np.allclose(other, x) for other, _ in lines):
        start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
        x = np.linspace(start, end, points) if end > start else np.array([start])
    values = np.stack([np.interp(x, own, y) for own, y in lines])
    return Curve(x, values.mean(0), values.min(0), values.max(0))


def window(points: int) -> int:
    """Number of points over which a curve is smoothed: a twentieth of them."""
    return max(1, round(points / 20))


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of each point and those before it within [`window`]; of fewer points at the start."""
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window(len(values)), 0)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[ends] - sums[starts]) / (ends - starts)
