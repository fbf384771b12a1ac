"""The runs of one algorithm: their curves on one axis, and their scores where all runs of a comparison have come to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..trainer.identity import differences, in_words
from .histories import AXES, History
from .statistics import interquartile_mean


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm with one set of settings, which differ in their seeds."""

    label: str
    runs: tuple[History, ...]

    @property
    def seeds(self) -> list[int]:
        """Of the runs."""
        return [run.seed for run in self.runs]


class Curve(NamedTuple):
    """The course of a group: x, the interquartile mean over its runs, and the smallest and the largest of them."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def group_runs(runs: Sequence[History]) -> list[Group]:
    """Runs by algorithm; those of one algorithm whose settings differ are several groups, and named by what differs.

    Raises:
        ValueError: two runs of a group have the same seed.
    """
    found: dict[str, list[History]] = {}
    for run in runs:
        found.setdefault(str(run.identity["algorithm"]), []).append(run)
    groups = []
    for algorithm, own in found.items():
        kinds: list[list[History]] = []
        for run in own:
            kind = next((k for k in kinds if not differences(k[0].settings, run.settings, defaults={})), None)
            kinds.append([run]) if kind is None else kind.append(run)
        for kind in kinds:
            groups.append(make_group(algorithm + _what_differs(kind[0], [k[0] for k in kinds]), kind))
    return groups


def make_group(label: str, runs: Sequence[History]) -> Group:
    """A group of runs, by their seeds. Raises `ValueError` where two have the same one."""
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in zip(ordered, ordered[1:], strict=False):
        if one.seed == other.seed:
            raise ValueError(f"{one.folder} and {other.folder} are runs of {label} with seed {one.seed}: leave out one")
    return Group(label, tuple(ordered))


def _what_differs(own: History, all_kinds: Sequence[History]) -> str:
    others = [kind for kind in all_kinds if kind is not own]
    names = {n for kind in others for n in differences(kind.settings, own.settings, defaults={})}
    given = {name: [None, own.settings.get(name)] for name in sorted(names)}
    return f" ({in_words(given).replace('null → ', '')})" if given else ""


def common_axes(groups: Sequence[Group]) -> list[str]:
    """Those of `AXES` that every run can be counted on."""
    return [name for name in AXES if all(name in run.axes for group in groups for run in group.runs)]


def reach(groups: Sequence[Group], axis: str) -> float:
    """How far all runs have come on an axis."""
    return min(run.totals[axis] for group in groups for run in group.runs)


def scores_at(groups: Sequence[Group], axis: str) -> list[np.ndarray]:
    """The score of each run where all have come to on an axis: of each group the shape (runs, 1)."""
    limit = reach(groups, axis)
    return [np.array([[run.at(axis, limit)] for run in group.runs]) for group in groups]


def mean_scores(groups: Sequence[Group]) -> list[np.ndarray]:
    """The mean score of each run over the steps that all have: of each group the shape (runs, 1)."""
    limit = reach(groups, "steps")
    return [np.array([[_mean_until(run, limit)] for run in group.runs]) for group in groups]


def _mean_until(run: History, limit: float) -> float:
    inside = run.axes["steps"] <= limit
    return float(run.values[inside].mean()) if inside.any() else float(run.values[0])


def curve(group: Group, axis: str, *, points: int = 200) -> Curve:
    """The course of a group on an axis, where all of its runs have a value, smoothed as `smoothed` does."""
    lines = [(run.axes[axis], smoothed(run.values)) for run in group.runs]
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    x = lines[0][0]
    if any(len(other) != len(x) or not np.allclose(other, x) for other, _ in lines):
        x = np.linspace(start, end, points) if end > start else np.array([start])
    values = np.stack([np.interp(x, own, y) for own, y in lines])
    middle = interquartile_mean(values.T[:, :, None])
    return Curve(x, middle, values.min(0), values.max(0))


def window(points: int) -> int:
    """Over how many points a curve is smoothed: a twentieth of them."""
    return max(1, round(points / 20))


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of each point and those before it within [`window`]; at the start of as many as there are."""
    size = window(len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - size, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
