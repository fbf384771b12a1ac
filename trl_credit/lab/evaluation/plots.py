"""The figure of an evaluation: scores by optimizer step for the checkpoints of one run, bars for other models."""

import io
import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .scores import Row


_STEP = re.compile(r"(.*?)checkpoint-(\d+)/?")
_MAX_NAME = 32  # characters in a legend


def draw_rows(rows: Sequence[Row]) -> bytes:
    """A PNG with one panel per set.

    If all models of a panel are `checkpoint-<step>` of one run, the x axis is the step and the 95 % intervals are
    bands; else models are bars with error bars. Scores are in percent, and permissive if there are strict ones too.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to plot")
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row["set"], row["protocol"]), []).append(row)
    several = len({protocol for _, protocol in panels}) > 1
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 5 * columns, 0.6 + 3.6 * lines), dpi=120, layout="constrained")  # pyplot has state
    for place, ((name, protocol), panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        steps = _steps(panel)
        if steps is None:
            _draw_bars(axes, panel)
        else:
            _draw_curves(axes, panel, steps)
        # a $ in a name would start a formula
        axes.set_title((f"{name}, {protocol}" if several else name).replace("$", r"\$"))
        axes.set_ylabel("percent, read permissively" if any(row.get("metrics_strict") for row in panel) else "percent")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
        # below the axes, because bars leave no room inside
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize="small")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _steps(rows: Sequence[Row]) -> list[int] | None:
    """The steps of several checkpoints of one run, or `None` for other models."""
    matches = [_STEP.fullmatch(row["model"]) for row in rows]
    if len(rows) < 2 or None in matches or len({match[1] for match in matches if match}) > 1:
        return None
    return [int(match[2]) for match in matches if match]


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))


def _draw_curves(axes: Axes, rows: Sequence[Row], steps: Sequence[int]) -> None:
    by_step = sorted(zip(steps, rows, strict=True), key=lambda pair: pair[0])
    for metric in _metrics(rows):
        points = [(step, row["metrics"][metric]) for step, row in by_step if metric in row["metrics"]]
        x = [step for step, _ in points]
        value, low, high = ([100 * point[key] for _, point in points] for key in ("value", "low", "high"))
        axes.plot(x, value, marker="." if len(x) < 60 else None, label=metric)
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimizer step", labelpad=0)


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    metrics = _metrics(rows)
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        points = [(j, row["metrics"][metric]) for j, metric in enumerate(metrics) if metric in row["metrics"]]
        value, low, high = ([100 * point[key] for _, point in points] for key in ("value", "low", "high"))
        # a percentile interval of a skewed score may exclude the score itself
        below = [max(0.0, v - end) for v, end in zip(value, low, strict=True)]
        above = [max(0.0, end - v) for v, end in zip(value, high, strict=True)]
        x = [j + (i - (len(rows) - 1) / 2) * width for j, _ in points]
        axes.bar(x, value, width * 0.92, label=_legend_name(row["model"]))
        axes.errorbar(x, value, yerr=[below, above], fmt="none", ecolor="black", elinewidth=1, capsize=3)
    axes.set_xticks(range(len(metrics)), metrics)
    room = max(0.6, (3 - len(metrics)) / 2)  # without it, a single bar is as wide as the figure
    axes.set_xlim(-room, len(metrics) - 1 + room)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1))


def _legend_name(model: str) -> str:
    name = model.rstrip("/").replace("$", r"\$")
    name = name if len(name) <= _MAX_NAME else "…" + name[-_MAX_NAME:]
    return name.lstrip("_") or "model"  # matplotlib omits names that begin with _
