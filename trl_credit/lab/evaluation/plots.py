"""The figure of an evaluation: scores by optimizer step for the checkpoints of one run, by metric for other models."""

import io
import re
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .scores import Row


_STEP = re.compile(r"(.*?)checkpoint-(\d+)/?")


def draw_rows(rows: Sequence[Row]) -> bytes:
    """A PNG with one panel per set and protocol, in percent; permissive scores if there are strict ones too.

    If all models of a panel are `checkpoint-<step>` of one run, a line per metric goes over the steps. Else the points
    of a model stand beside those of the others, by metric. The bars are 95 % intervals.
    """
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row['set']}, {row['protocol']}", []).append(row)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 5 * columns, 0.6 + 3.6 * lines), dpi=120, layout="constrained")  # pyplot has state
    for place, (title, panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        metrics = list(dict.fromkeys(metric for row in panel for metric in row["metrics"]))
        steps = [_STEP.fullmatch(row["model"]) for row in panel]
        of_one_run = len(panel) > 1 and all(steps) and len({match[1] for match in steps}) == 1
        series: dict[str, list[tuple[float, dict]]] = {}  # by label
        for i, (row, match) in enumerate(zip(panel, steps, strict=True)):
            for metric, score in row["metrics"].items():
                x = int(match[2]) if of_one_run else metrics.index(metric) + 0.6 * (i + 0.5) / len(panel) - 0.3
                series.setdefault(metric if of_one_run else row["model"][-32:], []).append((x, score))
        for label, points in series.items():
            points.sort(key=lambda point: point[0])
            value, low, high = ([100 * score[key] for _, score in points] for key in ("value", "low", "high"))
            # a percentile interval of a skewed score may exclude the score itself
            below = [max(0.0, v - end) for v, end in zip(value, low, strict=True)]
            above = [max(0.0, end - v) for v, end in zip(value, high, strict=True)]
            label = label.replace("$", r"\$").lstrip(
                "_"
            )  # a $ starts a formula, and labels with a leading _ are omitted
            style = "o-" if of_one_run else "o"
            axes.errorbar([x for x, _ in points], value, [below, above], fmt=style, capsize=3, label=label or "model")
        if of_one_run:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("optimizer step", labelpad=0)
        else:
            axes.set_xticks(range(len(metrics)), metrics)
            axes.set_xlim(-1, len(metrics))
        axes.set_title(title.replace("$", r"\$"))
        axes.set_ylabel("percent, read permissively" if any(row.get("metrics_strict") for row in panel) else "percent")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize="small")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
