"""Runs of one algorithm: their curves on a common axis, and their scores at the point that all runs have reached."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...runs.identity import differences, in_words
from ...support.digests import json_text
from .histories import AXES, History


_SHORT = 12  # characters of a setting in the name of a group


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
    """Groups runs by their names, and those without by algorithm and settings. Runs of one algorithm with different
    settings form groups, named by up to two short settings in which they differ, and by numbers where those agree.

    Raises:
        ValueError: two runs of a group have the same seed, or two runs of one name differ.
    """
    variants: dict[str, dict[str, list[History]]] = {}
    for run in runs:
        algorithm = run.record.get("trainer") or run.identity["algorithm"]  # a user's class keeps its name
        own = f"{run.credit['name'].rpartition(':')[2]} on {algorithm}" if run.credit.get("is_own") else algorithm
        settings = json_text({name: value for name, value in run.settings.items() if value is not None})
        variants.setdefault(run.name or own, {}).setdefault(settings, []).append(run)
    groups: dict[str, Group] = {}
    for name, by_settings in variants.items():
        firsts = [same[0] for same in by_settings.values()]
        if firsts[0].name and len(firsts) > 1:
            what = in_words(differences(firsts[0].settings, firsts[1].settings, defaults={}))
            fix = "give them different names"
            raise ValueError(f"{firsts[0].folder} and {firsts[1].folder} are named {name}, and differ ({what}): {fix}")
        for same in by_settings.values():
            differing = {n for first in firsts for n in differences(first.settings, same[0].settings, defaults={})}
            values = {n: in_short(same[0].settings.get(n)) for n in sorted(differing)}
            short = [f"{n} {value}" for n, value in values.items() if len(value) <= _SHORT and value != "null"]
            shown = ", ".join(short[:2])
            label = name + (f" ({shown})" if shown else "")
            numbered = (label if n == 1 else f"{label} #{n}" for n in count(1))
            label = next(text for text in numbered if text not in groups)
            groups[label] = make_group(label, same)
    return [*groups.values()]


def in_short(value: Any) -> str:
    """A setting as text: 0.00005 as "5e-5"."""
    if isinstance(value, float):
        return re.sub(r"e-0", "e-", f"{value:g}")
    return value if isinstance(value, str) else json_text(value)


def make_group(label: str, runs: Sequence[History], value: float | str | None = None) -> Group:
    """A group of runs, ordered by seed. Raises `ValueError` if two runs have the same seed."""
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in zip(ordered, ordered[1:], strict=False):
        if one.seed == other.seed:
            raise ValueError(f"{one.folder} and {other.folder} are runs of {label} with seed {one.seed}: leave out one")
    return Group(label, tuple(ordered), value)


def common_axes(groups: Sequence[Group]) -> list[str]:
    """The names of `AXES` that every run has."""
    return [name for name in AXES if all(name in run.axes for group in groups for run in group.runs)]


def curve(group: Group, axis: str, *, points: int = 200) -> Curve:
    """The smoothed curve of a group on an axis, over the range that all of its runs cover."""
    lines = [(run.axes[axis], smoothed(run.values)) for run in group.runs]
    x = lines[0][0]
    if any(len(other) != len(x) or not np.allclose(other, x) for other, _ in lines):
        start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
        x = np.linspace(start, end, points) if end > start else np.array([start])
    values = np.stack([np.interp(x, own, y) for own, y in lines])
    return Curve(x, values.mean(0), values.min(0), values.max(0))


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of each point and those before it, a twentieth of all points; of fewer at the start."""
    return pd.Series(values).rolling(max(1, round(len(values) / 20)), min_periods=1).mean().to_numpy()
