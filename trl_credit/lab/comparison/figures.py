"""The figures of a comparison, in a light and a dark theme, as PNG and SVG."""

import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .groups import Group, curve
from .scoring import ScoreRow
from .tuning import TunedRow, in_short


_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))
_WIDTH = 5.0  # inches: the labels can still be read on a telephone
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

    A line is the mean over runs, a band goes from the lowest run to the highest.
    """
    others = [group for group in groups if group is not baseline]
    styles = _styles([group.label for group in groups], baseline.label, theme)
    if len(others) <= _MAX_TOGETHER:
        figure, panels = _figure(theme, (_WIDTH, 4.0), 1, 1)
        for group in [baseline, *others]:
            _draw(panels[0], group, axis, styles[group.label])
        _label_axes(panels[0], axis, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, **_legend(theme))
        return figure
    by_label = {group.label: group for group in groups}

    def draw(panel: Axes, label: str, style: dict) -> None:
        _draw(panel, by_label[label], axis, style)
        _label_axes(panel, axis, metric)

    return _draw_beside([group.label for group in others], baseline.label, theme, draw)


def draw_differences(
    rows: Sequence[ScoreRow], *, score: str, baseline: str, same: Sequence[str], theme: Theme
) -> Figure:
    """A forest plot: the difference of each algorithm from the baseline with its interval, and 0 as a line.

    Algorithms in `same`, which have the baseline's gradient, are grey.
    """
    figure, (panel,) = _figure(theme, (_WIDTH, 1.0 + 0.3 * max(len(rows), 1)), 1, 1)
    for y, row in enumerate(rows):
        colour = theme.muted if row.label in same else theme.lines[0]
        if row.low is not None:
            panel.plot([row.low, row.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
        filled = colour if row.verdict in ("above", "below") else theme.page
        panel.plot([row.difference], [y], "o", color=colour, markerfacecolor=filled, markersize=7, zorder=4)
    panel.axvline(0, color=theme.text, linewidth=1)
    panel.set_yticks(range(len(rows)), [_plain(row.label) for row in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel(_plain(f"{score}, minus that of {baseline}"))
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    return figure


def draw_sweep(rows: Sequence[TunedRow], *, setting: str, score: str, baseline: str, theme: Theme) -> Figure:
    """The score of each algorithm by the swept value: all in one panel if they are few, else each beside the baseline.

    A ring marks the best value.
    """
    by_label = {row.label: row for row in rows}
    others = [label for label in by_label if label != baseline]
    values = list(dict.fromkeys(value for row in rows for value in row.scores))
    is_number = all(isinstance(value, int | float) for value in values)
    values = sorted(values) if is_number else values
    places = {value: value if is_number else i for i, value in enumerate(values)}

    def draw(panel: Axes, label: str, style: dict) -> None:
        if label not in by_label:  # a baseline without this setting
            return
        row = by_label[label]
        x = [places[value] for value in row.scores]
        panel.plot(x, list(row.scores.values()), label=_plain(label), marker=".", linewidth=1.8, **style)
        best = places[row.best], row.scores[row.best]
        panel.plot(*best, "o", color=style["color"], markersize=11, markerfacecolor="none", clip_on=False)
        if is_number and min(values) > 0 and max(values) >= 4 * min(values):
            panel.set_xscale("log")
            panel.minorticks_off()
        panel.set_xticks(list(places.values()), [_plain(in_short(value)) for value in values])
        panel.set_xlabel(setting, fontsize=9)
        panel.set_ylabel(_plain(score), fontsize=9)

    if len(others) > _MAX_TOGETHER:
        return _draw_beside(others, baseline, theme, draw)
    figure, (panel,) = _figure(theme, (_WIDTH, 4.2), 1, 1)
    for label, style in _styles(list(by_label), baseline, theme).items():
        draw(panel, label, style)
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, **_legend(theme))
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


def _draw_beside(labels: Sequence[str], baseline: str, theme: Theme, draw: Callable[[Axes, str, dict], None]) -> Figure:
    """A panel for each algorithm, with the baseline behind it. `draw(panel, label, style)` draws a line."""
    columns = 2
    rows = -(-len(labels) // columns)
    figure, panels = _figure(theme, (_WIDTH, 0.8 + 1.6 * rows), rows, columns)
    for place, (panel, label) in enumerate(zip(panels, labels, strict=False)):
        draw(panel, baseline, {"color": theme.muted, "linestyle": "-"})
        draw(panel, label, {"color": theme.lines[0], "linestyle": "-"})
        panel.set_title(_plain(label), fontsize=9, loc="left", color=theme.text)
        bottom, left = place + columns >= len(labels), place % columns == 0
        panel.tick_params(labelbottom=bottom, labelleft=left)
        panel.set_xlabel(panel.get_xlabel() if bottom else "")
    figure.supylabel(panels[0].get_ylabel(), fontsize=9, color=theme.text)  # one for all, which are lower than its text
    for panel in panels:
        panel.set_ylabel("")
    for panel in panels[len(labels) :]:
        panel.set_visible(False)
    handles, names = panels[0].get_legend_handles_labels()
    if len(handles) > 1:
        texts = [f"{names[0]}, in every panel", "the algorithm above the panel"]
        figure.legend(handles, texts, loc="outside upper left", ncols=2, **_legend(theme))
    return figure


def _styles(labels: Sequence[str], baseline: str, theme: Theme) -> dict[str, dict]:
    styles = {baseline: {"color": theme.text, "linestyle": "-"}}
    for i, label in enumerate(label for label in labels if label != baseline):
        styles[label] = {"color": theme.lines[i % len(theme.lines)], "linestyle": _LINES[i % len(_LINES)]}
    return styles


def _legend(theme: Theme) -> dict:
    return {"frameon": False, "labelcolor": theme.text, "fontsize": 9, "handlelength": 2.6}


def _plain(text: str) -> str:
    """Text in which a dollar sign begins no formula."""
    return text.replace("$", r"\$")


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
    panel.plot(found.x, found.middle, label=_plain(group.label), linewidth=1.8, marker="." if few else None, **style)
    if len(group.runs) > 1:
        panel.fill_between(found.x, found.low, found.high, alpha=0.16, linewidth=0, color=style["color"])


def _label_axes(panel: Axes, axis: str, metric: str) -> None:
    panel.set_xlabel(LABELS[axis], fontsize=9)
    panel.set_ylabel(_plain(metric), fontsize=9)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    if axis != "seconds":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
