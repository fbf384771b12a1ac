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
    """A PNG with one panel per set and protocol.

    If all models of a panel are `checkpoint-<step>` of one run, the x axis is the step and the 95 % intervals are
    bands; else models are bars with error bars. Scores are in percent, and permissive if there are strict ones too.
    """
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row["set"], row["protocol"]), []).append(row)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 5 * columns, 0.6 + 3.6 * lines), dpi=120, layout="constrained")  # pyplot has state
    for place, ((name, protocol), panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        steps = [_STEP.fullmatch(row["model"]) for row in panel]
        if len(panel) > 1 and all(steps) and len({match[1] for match in steps}) == 1:
            _draw_curves(axes, dict(sorted(zip((int(match[2]) for match in steps), panel, strict=True))))
        else:
            _draw_bars(axes, panel)
        axes.set_title(f"{name}, {protocol}".replace("$", r"\$"))  # a $ would start a formula
        axes.set_ylabel("percent, read permissively" if any(row.get("metrics_strict") for row in panel) else "percent")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
        # below the axes, because bars leave no room inside
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize="small")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_curves(axes: Axes, by_step: dict[int, Row]) -> None:
    for metric in _metrics(by_step.values()):
        points = {step: row["metrics"][metric] for step, row in by_step.items() if metric in row["metrics"]}
        value, low, high = ([100 * point[key] for point in points.values()] for key in ("value", "low", "high"))
        axes.plot(list(points), value, marker=".", label=metric)
        axes.fill_between(list(points), low, high, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimizer step", labelpad=0)


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    metrics = _metrics(rows)
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        points = {metrics.index(metric): score for metric, score in row["metrics"].items()}
        value, low, high = ([100 * point[key] for point in points.values()] for key in ("value", "low", "high"))
        # a percentile interval of a skewed score may exclude the score itself
        below = [max(0.0, v - end) for v, end in zip(value, low, strict=True)]
        above = [max(0.0, end - v) for v, end in zip(value, high, strict=True)]
        name = row["model"].replace("$", r"\$").lstrip("_")  # matplotlib omits names that begin with _
        x = [place + (i - (len(rows) - 1) / 2) * width for place in points]
        axes.bar(x, value, width, yerr=[below, above], capsize=3, label=name[-_MAX_NAME:] or "model")
    axes.set_xticks(range(len(metrics)), metrics)
    axes.set_xlim(-1, len(metrics))


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))
