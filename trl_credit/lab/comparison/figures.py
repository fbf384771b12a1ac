"""The figures of a comparison, as PNG and SVG."""

import io
import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .groups import Group, curve
from .histories import AXES
from .scoring import ScoreRow


_COLOUR, _TEXT, _MUTED, _GRID = "#0072b2", "#16181d", "#565d6b", "#d9dde4"
_WIDTH = 5.0  # inches: the labels can still be read on a telephone
_SIZE = 9  # points
_LONG = 28  # characters of a line


def draw_curves(groups: Sequence[Group], axis: str, *, metric: str, baseline: str) -> Figure:
    """The score against one of `AXES`: a panel for each algorithm, with the baseline behind it.

    A line is the mean over runs, a band goes from the lowest run to the highest.
    """
    base = next(group for group in groups if group.label == baseline)
    others = [group for group in groups if group is not base] or [base]
    columns = min(len(others), 2)
    rows = -(-len(others) // columns)
    figure, panels = _figure((_WIDTH, 0.9 + (1.6 if rows > 1 else 2.6) * rows), rows, columns)
    for place, (panel, group) in enumerate(zip(panels, others, strict=False)):
        for one, colour in ((base, _MUTED), (group, _COLOUR)):
            line = curve(one, axis)
            panel.plot(line.x, line.middle, linewidth=1.8, marker="." if len(line.x) < 12 else None, color=colour)
            panel.fill_between(line.x, line.low, line.high, alpha=0.16, linewidth=0, color=colour)
        panel.set_title(_plain(group.label), fontsize=_SIZE, loc="left", color=_TEXT)
        panel.tick_params(labelbottom=place + columns >= len(others), labelleft=place % columns == 0)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    for panel in panels[len(others) :]:
        panel.set_visible(False)
    # one label for all panels, which are lower than its text
    figure.supxlabel(AXES[axis], fontsize=_SIZE, color=_TEXT)
    figure.supylabel(_plain(metric), fontsize=_SIZE, color=_TEXT)
    names = [f"{_plain(baseline)}, in every panel", "the algorithm above the panel"]
    style = {"frameon": False, "labelcolor": _TEXT, "fontsize": _SIZE}
    figure.legend(panels[0].get_lines(), names, loc="outside upper left", ncols=2, **style)
    return figure


def draw_differences(rows: Sequence[ScoreRow], *, score: str, baseline: str, same: Sequence[str]) -> Figure:
    """A forest plot: the difference of each algorithm from the baseline with its interval, and 0 as a line.

    Algorithms in `same`, which have the baseline's gradient, are grey.
    """
    labels = [_plain(row.label) for row in rows]
    figure, (panel,) = _figure((_WIDTH, 1.0 + sum(max(0.3, 0.17 * (label.count("\n") + 1)) for label in labels)))
    for y, row in enumerate(rows):
        colour = _MUTED if row.label in same else _COLOUR
        if row.low is not None:
            panel.plot([row.low, row.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
        filled = colour if row.verdict in ("above", "below") else "white"
        panel.plot([row.difference], [y], "o", color=colour, markerfacecolor=filled, markersize=7, zorder=4)
    panel.axvline(0, color=_TEXT, linewidth=1)
    panel.set_yticks(range(len(rows)), labels)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel(_plain(f"{score}, minus that of {baseline}"), color=_TEXT)
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


def _figure(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained")  # pyplot has global state
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for panel in panels:
        panel.tick_params(colors=_MUTED, labelcolor=_TEXT, labelsize=_SIZE)
        panel.grid(color=_GRID, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["bottom", "left"]].set_color(_MUTED)
    return figure, panels


def _plain(text: str) -> str:
    """Text in lines that leave room for the axes, in which a dollar sign begins no formula."""
    return "\n".join(textwrap.wrap(text, _LONG, max_lines=3, placeholder=" …")).replace("$", r"\$")
