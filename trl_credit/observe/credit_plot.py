"""How credit was assigned over a run, as a figure of at most four panels. The logs hold all metrics."""

import math
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .credit_panels import PANELS, Panel
from .figures import add_axes, save_png


MOST_PANELS = 4
PREFIX = "credit/"
_WIDTH, _HEIGHT = 5.5, 3.9  # of a panel with its texts, in inches
_LETTERS = 70  # of a line of a sentence, which may have three
_SEQUENCE, _MANY = colormaps["viridis_r"], 6  # colours of ordered lines, for panels of more than _MANY lines
_NOISE = 0.1  # of its largest value: a panel whose values lie closer together has nothing to say
_ALIKE = 0.02  # of the largest value: lines that never lie further apart are drawn as one
# a metric that only ever has this value gets no panel; for trees the share of rollouts is always 1
NO_NEWS = {"skipped_updates": 0.0, "zero_gradients": 0.0, "kept_fraction": 1.0, "rollout_token_share": 1.0}
# what a run cost and the state of its parts are in the logs alone
_IN_LOGS = (
    *("seconds/", "trained_tokens_per_row", "skipped_micro_batches", "rollout_tokens", "rollouts", "nodes", "rows"),
    *("responses_", "segments_per_response", "replay/", "difficulty_rate", "difficulty_floor"),
    *("trace_mass", "effective_horizon", "selected_fraction", "noise_share", "last_tokens_share"),
    "abs_advantage",
)
_Series = dict[str, list[tuple[int, float]]]


def plot_credit(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> list[str]:
    """Plots metrics logged under `credit/` by optimizer step to a PNG: the first four of `PANELS` that have something
    to say, each with a sentence. A metric that `PANELS` does not name gets a panel after those.

    A panel whose values hardly differ says nothing. If there is no other, the first of them is drawn. Axes begin at 0,
    so that they show no noise. That of a share ends at 100 %, or just above the largest value if all are below 10 %.

    Args:
        log_history (`list[dict]`):
            `trainer.state.log_history`.
        path (`str` or `Path`):
            The PNG file.
        title (`str`):
            Title of the figure.

    Returns:
        `list[str]`: the metrics in the plot. If it is empty, no file is written.
    """
    series = _series(log_history)
    panels = [panel._replace(labels=names) for panel in PANELS if (names := _names(panel.labels, series))]
    known = {name for panel in panels for name in panel.labels}
    others = [name for name in sorted(set(series) - known) if not name.startswith(_IN_LOGS)]
    panels += [Panel(name.replace("_", " "), "", {name: ""}) for name in others]
    panels = ([panel for panel in panels if _says(panel, series)] or panels[:1])[:MOST_PANELS]
    if not panels:
        return []
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = _HEIGHT * rows + 0.4
    figure = Figure(figsize=(_WIDTH * columns, height), dpi=110)
    for i, panel in enumerate(panels):
        left, top = _WIDTH * (i % columns), _HEIGHT * (rows - i // columns)
        room = {"left": left + 0.8, "bottom": top - _HEIGHT + 0.9, "right": left + _WIDTH - 0.15, "top": top - 0.2}
        _draw(panel, series, add_axes(figure, **room))
    figure.suptitle(title, fontsize=12, y=1 - 0.1 / height)
    save_png(figure, path)
    return [name for panel in panels for name in panel.labels]


def _draw(panel: Panel, series: _Series, axes: Axes) -> None:
    factor = 100 if panel.unit.startswith("%") else 1
    lines = _lines(panel, series)
    if len(lines) > _MANY:
        axes.set_prop_cycle(color=_SEQUENCE(range(0, 256, 256 // len(lines))))
    low, high = 0.0, 0.0
    for j, (label, points) in enumerate(lines.items()):
        steps, shares = zip(*points, strict=True)
        values = [factor * x for x in shares]
        # the first lines are the widest, so that lines that coincide stay visible
        width = 1.2 + min(0.8, 3 / len(lines)) * (len(lines) - 1 - j)
        axes.plot(steps, values, marker="." if len(steps) < 60 else None, linewidth=width, label=label)
        low, high = min(low, *values), max(high, *values)
    if factor == 100:
        axes.set_ylim(0, min(1.2 * high, 10) if 0 < high <= 10 else 100)
    elif low < 0:
        reach = 1.1 * max(-low, high)
        axes.set_ylim(-reach, reach)
    else:
        axes.set_ylim(0, 1.1 * high or 1)
    axes.set_title(panel.title, fontsize=11, y=1)  # without y, its place is searched for
    axes.set_ylabel(panel.unit, fontsize=9)
    axes.tick_params(labelsize=8)
    if any(lines):
        size = {"fontsize": 6, "ncols": 2} if len(lines) > _MANY else {"fontsize": 8}
        axes.legend(framealpha=0.8, edgecolor="none", **size)
    axes.set_xlabel("\n".join(["optimizer step", *textwrap.wrap(panel.sentence, _LETTERS)]), fontsize=9)


def _lines(panel: Panel, series: _Series) -> dict[str, list[tuple[int, float]]]:
    """The lines of a panel by their labels: neighbours that are alike are one line."""
    largest = max(abs(x) for name in panel.labels for _, x in series[name])
    found: list[list[str]] = []
    for name in panel.labels:
        if found and _distance(series[found[-1][0]], series[name]) <= _ALIKE * largest:
            found[-1].append(name)
        else:
            found.append([name])
    labels = [[panel.labels[name] for name in names] for names in found]
    return {
        x[0] if len(x) == 1 else f"{x[0]} to {x[-1]}": series[names[0]] for x, names in zip(labels, found, strict=True)
    }


def _distance(left: list[tuple[int, float]], right: list[tuple[int, float]]) -> float:
    """The largest difference of two metrics at a step; infinity if they were not logged in the same steps."""
    if [step for step, _ in left] != [step for step, _ in right]:
        return math.inf
    return max(abs(x - y) for (_, x), (_, y) in zip(left, right, strict=True))


def _says(panel: Panel, series: _Series) -> bool:
    """Whether the values of a panel differ by more than noise, over steps or between its metrics."""
    values = [x for name in panel.labels for _, x in series[name]]
    return max(values) - min(values) > _NOISE * max(map(abs, values))


def _series(log_history: list[dict[str, Any]]) -> _Series:
    """Steps and finite values of each metric, by its name without the prefix."""
    series = defaultdict(list)
    for row in log_history:
        for key, value in row.items():
            if key.startswith(PREFIX) and "step" in row and value is not None and math.isfinite(value):
                series[key.removeprefix(PREFIX)].append((row["step"], value))
    return {name: points for name, points in series.items() if any(x != NO_NEWS.get(name) for _, x in points)}


def _names(labels: dict[str, str], series: _Series) -> dict[str, str]:
    """The logged metrics of a panel, with their labels."""
    found = {}
    for name, label in labels.items():
        if name.endswith("/"):
            found |= {n: n.removeprefix(name).replace("_", " ") for n in sorted(series) if n.startswith(name)}
        elif name in series:
            found[name] = label
    return found
