"""The figures of a comparison, in a light and a dark theme, as PNG and SVG."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .groups import Group, curve
from .scoring import ScoreRow


_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))
_MAX_TOGETHER = 4  # algorithms in one panel, beside the baseline
LABELS = {
    "steps": "optimizer steps",
    "prompts": "prompts",
    "generated": "generated tokens",
    "trained": "trained tokens",
    "seconds": "seconds of training",
}


class Theme(NamedTuple):
    """Colours of the page and of the data.

    Colour-blind people can distinguish those of `lines` (Okabe and Ito, darkened or lightened for the page).
    """

    page: str
    text: str
    muted: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Theme(
    "#ffffff", "#16181d", "#565d6b", "#d9dde4", ("#0072b2", "#d98200", "#00795a", "#b8508c", "#b84a00", "#2b93cf")
)
DARK = Theme(
    "#14161b", "#f4f5f7", "#a8afbd", "#353a45", ("#56b4e9", "#e69f00", "#1fbf90", "#e49ac2", "#f07a2b", "#3f8fd6")
)


def draw_curves(groups: Sequence[Group], axis: str, *, metric: str, baseline: Group, theme: Theme) -> Figure:
    """The score of every group against one of `AXES`: all in one panel if they are few, else each beside the baseline.

    A line is the interquartile mean over runs, a band goes from the lowest run to the highest.
    """
    others = [group for group in groups if group is not baseline]
    styles = _styles(groups, baseline, theme)
    if len(others) <= _MAX_TOGETHER:
        figure, panels = _figure(theme, (8.4, 4.2), 1, 1)
        for group in [baseline, *others]:
            _draw(panels[0], group, axis, styles[group.label])
        _label_axes(panels[0], axis, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        style = {"frameon": False, "labelcolor": theme.text, "fontsize": 9, "handlelength": 2.6}
        figure.legend(handles, labels, loc="outside right upper", **style)
        return figure
    columns = 3
    rows = -(-len(others) // columns)
    figure, panels = _figure(theme, (9.6, 0.8 + 2.1 * rows), rows, columns)
    for place, (panel, group) in enumerate(zip(panels, others, strict=False)):
        _draw(panel, baseline, axis, {"color": theme.muted, "linestyle": "-"})
        _draw(panel, group, axis, {"color": theme.lines[0], "linestyle": "-"})
        panel.set_title(group.label, fontsize=9, loc="left", color=theme.text)
        _label_axes(panel, axis, metric)
        bottom, left = place + columns >= len(others), place % columns == 0
        panel.tick_params(labelbottom=bottom, labelleft=left)
        panel.set_xlabel(panel.get_xlabel() if bottom else "")
        panel.set_ylabel(panel.get_ylabel() if left else "")
    for panel in panels[len(others) :]:
        panel.set_visible(False)
    lines = panels[0].get_lines()[:2]
    names = [f"{baseline.label}, in every panel", "the algorithm above the panel"]
    figure.legend(lines, names, loc="outside upper left", ncols=2, frameon=False, labelcolor=theme.text, fontsize=9)
    return figure


def draw_scores(rows: Sequence[ScoreRow], *, metric: str, baseline: str, theme: Theme) -> Figure:
    """The interquartile mean of each group with its interval and runs, and its probability of improvement."""
    figure, (left, right) = _figure(theme, (8.4, 1.3 + 0.34 * len(rows)), 1, 2, sharey=True, sharex=False)
    for y, row in enumerate(rows):
        colour = theme.text if row.label == baseline else theme.lines[0]
        left.scatter(row.scores, np.full(len(row.scores), y + 0.25), s=10, color=theme.muted, linewidths=0)
        _point(left, y, row.middle, row.interval, colour)
        if row.improvement is not None:
            _point(right, y, row.improvement, row.improvement_interval, colour)
    right.axvline(0.5, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)))
    right.set_xlim(-0.03, 1.03)
    left.set_yticks(range(len(rows)), [row.label for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlabel(f"{metric}, interquartile mean")
    right.set_xlabel(f"P(above {baseline})")
    for panel in (left, right):
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
    return figure


def as_svg(figure: Figure) -> str:
    """An SVG with text as paths, which needs no font. Equal figures give equal text."""
    with matplotlib.rc_context({"svg.hashsalt": "trl_credit", "svg.fonttype": "path"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def as_png(figure: Figure) -> bytes:
    """A PNG with 160 dots per inch."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=160, metadata={"Software": None})
    return data.getvalue()


def _styles(groups: Sequence[Group], baseline: Group, theme: Theme) -> dict[str, dict]:
    styles = {baseline.label: {"color": theme.text, "linestyle": "-"}}
    for i, group in enumerate(g for g in groups if g is not baseline):
        styles[group.label] = {"color": theme.lines[i % len(theme.lines)], "linestyle": _LINES[i % len(_LINES)]}
    return styles


def _figure(
    theme: Theme, size: tuple[float, float], rows: int, columns: int, *, sharex: bool = True, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained", facecolor=theme.page)  # pyplot has global state
    panels = list(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).flat)
    for panel in panels:
        panel.set_facecolor(theme.page)
        panel.tick_params(colors=theme.muted, labelcolor=theme.text, labelsize=9)
        panel.grid(color=theme.grid, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["bottom", "left"]].set_color(theme.muted)
        panel.xaxis.label.set_color(theme.text)
        panel.yaxis.label.set_color(theme.text)
    return figure, panels


def _draw(panel: Axes, group: Group, axis: str, style: dict) -> None:
    found = curve(group, axis)
    few = len(found.x) < 12
    panel.plot(found.x, found.middle, label=group.label, linewidth=1.8, marker="." if few else None, **style)
    if len(group.runs) > 1:
        panel.fill_between(found.x, found.low, found.high, alpha=0.16, linewidth=0, color=style["color"])


def _label_axes(panel: Axes, axis: str, metric: str) -> None:
    panel.set_xlabel(LABELS[axis], fontsize=9)
    panel.set_ylabel(metric, fontsize=9)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    if axis != "seconds":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _point(panel: Axes, y: int, x: float, interval: tuple[float, float] | None, colour: str) -> None:
    if interval is not None:
        panel.plot(interval, [y, y], color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
    panel.plot([x], [y], "o", color=colour, markersize=6, zorder=4)
