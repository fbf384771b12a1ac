"""The figure of an evaluation: scores by optimizer step for the checkpoints of a run, bars for other models."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


_STEP = re.compile(r"(.*?)checkpoint-(\d+)/?")
_LONGEST_NAME = 32  # characters in a legend


def plot_rows(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Draws one panel per set, to a PNG.

    Where all models are `checkpoint-<step>` of one run the x axis is the step, with the 95 % intervals as bands; else
    models are bars with error bars. Scores are in percent, of the permissive reading where there are two, and say so.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to plot")
    sets = list(dict.fromkeys((row["set"], row["protocol"]) for row in rows))
    several = len({protocol for _, protocol in sets}) > 1
    columns = min(3, len(sets))
    lines = -(-len(sets) // columns)
    figure = Figure(figsize=(1 + 5 * columns, 0.6 + 3.6 * lines), dpi=120, layout="constrained")  # no pyplot: no screen
    FigureCanvasAgg(figure)
    for i, (name, protocol) in enumerate(sets):
        axes = figure.add_subplot(lines, columns, i + 1)
        mine = [row for row in rows if (row["set"], row["protocol"]) == (name, protocol)]
        (_bars if _steps(mine) is None else _curves)(axes, mine)
        # a $ in a name would start a formula
        axes.set_title((f"{name}, {protocol}" if several else name).replace("$", r"\$"))
        axes.set_ylabel("percent, read permissively" if any(row.get("metrics_strict") for row in mine) else "percent")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
        # under the axes: bars leave no room within
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize="small")
    figure.savefig(path)


def _steps(rows: Sequence[dict[str, Any]]) -> list[int] | None:
    """The steps of checkpoints of one run, or `None` if they are something else."""
    found = [_STEP.fullmatch(row["model"]) for row in rows]
    if len(rows) < 2 or None in found or len({match[1] for match in found if match}) > 1:
        return None
    return [int(match[2]) for match in found if match]


def _curves(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    by_step = sorted(zip(_steps(rows) or [], rows, strict=True), key=lambda pair: pair[0])
    for metric in dict.fromkeys(m for row in rows for m in row["metrics"]):
        points = [(step, row["metrics"][metric]) for step, row in by_step if metric in row["metrics"]]
        x = [step for step, _ in points]
        axes.plot(x, [100 * p["value"] for _, p in points], marker="." if len(x) < 60 else None, label=metric)
        low, high = [100 * p["low"] for _, p in points], [100 * p["high"] for _, p in points]
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimizer step", labelpad=0)


def _bars(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    metrics = list(dict.fromkeys(m for row in rows for m in row["metrics"]))
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        points = [(j, row["metrics"][m]) for j, m in enumerate(metrics) if m in row["metrics"]]
        value = [100 * p["value"] for _, p in points]
        # percentile intervals of a skewed score may leave the score itself out
        below = [max(0.0, v - 100 * p["low"]) for v, (_, p) in zip(value, points, strict=True)]
        above = [max(0.0, 100 * p["high"] - v) for v, (_, p) in zip(value, points, strict=True)]
        x = [j + (i - (len(rows) - 1) / 2) * width for j, _ in points]
        axes.bar(x, value, width * 0.92, label=_short(row["model"]))
        axes.errorbar(x, value, yerr=[below, above], fmt="none", ecolor="black", elinewidth=1, capsize=3)
    axes.set_xticks(range(len(metrics)), metrics)
    room = max(0.6, (3 - len(metrics)) / 2)  # or a single bar is as wide as the figure
    axes.set_xlim(-room, len(metrics) - 1 + room)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1))


def _short(model: str) -> str:
    name = model.rstrip("/").replace("$", r"\$")
    name = name if len(name) <= _LONGEST_NAME else "…" + name[-_LONGEST_NAME:]
    return name.lstrip("_") or "model"  # matplotlib leaves names that begin with _ out
