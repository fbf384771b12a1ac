"""How credit was assigned over a run, as a figure. The logs hold all metrics."""

import math
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .figures import add_axes, save_png


PREFIX = "credit/"
_WIDTH, _HEIGHT = 5.5, 3.9  # of a panel with its texts, in inches
_LETTERS = 70  # of a line of a sentence, which may have three
_SEQUENCE, _MANY = colormaps["viridis_r"], 6  # colours of ordered lines, for panels of more than _MANY lines
# a metric that only ever has this value is not drawn; for trees the share of rollouts is always 1
_NO_NEWS = {"skipped_updates": 0.0, "zero_gradients": 0.0, "kept_fraction": 1.0, "rollout_token_share": 1.0}
# what a run cost and the state of its parts are in the logs alone
_IN_LOGS = (
    *("seconds/", "trained_tokens_per_row", "skipped_micro_batches", "rollout_tokens", "rollouts", "nodes", "rows"),
    *("responses_", "segments_per_response", "replay/", "difficulty_rate", "difficulty_floor", "groups/"),
    *("trace_mass", "effective_horizon", "selected_fraction", "noise_share", "last_tokens_share", "abs_advantage"),
)
# how the names of a panel's metrics begin, and what it shows; other metrics have a panel each
PANELS = {
    "skipped_updates": "Share of updates that were left out because their loss or gradient was not finite.",
    "zero_gradients": "Share of updates that changed no weight, although tokens had advantages.",
    "coefficient/entropy": "Credit of a token in units of its advantage, by entropy within a response. Above 1 it came "
    "back through traces.",
    "coefficient/quarter": "The same by quarter of the response: a token that many others follow receives more.",
    "difficulty_weight": "What HA-DW multiplies advantages by, for prompts harder and easier than its belief.",
    "difficulty_belief": "Expected share of right responses: prompts with fewer count as harder, with more as easier.",
    "segment_value": "Mean reward of what was sampled from a segment on: how promising a response is at that point.",
    "segment_abs_advantage": "How much the value of a node differs from its siblings': where responses are decided.",
    "segment_advantage": "Mean change of the value from the beginning of a segment to its end.",
    "nodes_zero_advantage": "Share of nodes whose value equals that of their siblings: they teach nothing.",
    "clip_fraction": "Share of tokens without gradient, since their probability has moved out of the clip range.",
    "groups_without_signal": "Share of prompts whose responses or segments all have no advantage: they teach nothing.",
    "groups/sampled": "Prompts sampled until the batch was full.",
    "unique_responses": "Different texts among the responses to a prompt: exploration that is left.",
    "abs_advantage/quarter": "Distance of rewards from the baseline, by quarter of the response; 0 teaches nothing.",
    "kept_fraction": "Share of tokens that the mask keeps.",
    "rollout_token_share": "Share of tokens that were sampled only to value segments.",
    "expert_drift": "Share of a token's experts in the sampling policy that the current policy does not use.",
}
_Series = dict[str, list[tuple[int, float]]]


def plot_credit(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> list[str]:
    """Plots metrics logged under `credit/` by optimizer step to a PNG: each of `PANELS` that has values, then one panel
    for each other metric. Axes begin at 0, so that they show no noise.

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
    panels = {begin: [name for name in series if name.startswith(begin)] for begin in PANELS}
    known = {name for names in panels.values() for name in names}
    panels |= {name: [name] for name in sorted(series) if name not in known and not name.startswith(_IN_LOGS)}
    panels = {begin: names for begin, names in panels.items() if names}
    if not panels:
        return []
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = _HEIGHT * rows + 0.4
    figure = Figure(figsize=(_WIDTH * columns, height), dpi=110)
    for i, (begin, names) in enumerate(panels.items()):
        left, top = _WIDTH * (i % columns), _HEIGHT * (rows - i // columns)
        room = {"left": left + 0.8, "bottom": top - _HEIGHT + 0.9, "right": left + _WIDTH - 0.15, "top": top - 0.2}
        _draw(begin, {name: series[name] for name in names}, add_axes(figure, **room))
    figure.suptitle(title, fontsize=12, y=1 - 0.1 / height)
    save_png(figure, path)
    return [name for names in panels.values() for name in names]


def _draw(begin: str, lines: _Series, axes: Axes) -> None:
    if len(lines) > _MANY:
        axes.set_prop_cycle(color=_SEQUENCE(range(0, 256, 256 // len(lines))))
    for j, (name, points) in enumerate(lines.items()):
        # the first lines are the widest, so that lines that coincide stay visible
        width = 1.2 + min(0.8, 3 / len(lines)) * (len(lines) - 1 - j)
        label = name.partition("/")[2].replace("_", " ") or "all"
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 60 else None, linewidth=width, label=label)
    values = [value for points in lines.values() for _, value in points]
    reach = 1.1 * max(map(abs, values)) or 1.0
    axes.set_ylim(-reach if min(values) < 0 else 0.0, reach)
    axes.set_title(begin.replace("_", " "), fontsize=11, y=1)  # without y, its place is searched for
    axes.tick_params(labelsize=8)
    if lines.keys() != {begin}:
        size = {"fontsize": 6, "ncols": 2} if len(lines) > _MANY else {"fontsize": 8}
        axes.legend(framealpha=0.8, edgecolor="none", **size)
    sentence = textwrap.wrap(PANELS.get(begin, ""), _LETTERS)
    axes.set_xlabel("\n".join(["optimizer step", *sentence]), fontsize=9)


def _series(log_history: list[dict[str, Any]]) -> _Series:
    """Steps and finite values of each metric, by its name without the prefix."""
    series = defaultdict(list)
    for row in log_history:
        for key, value in row.items():
            if key.startswith(PREFIX) and "step" in row and value is not None and math.isfinite(value):
                series[key.removeprefix(PREFIX)].append((row["step"], value))
    return {name: points for name, points in series.items() if any(x != _NO_NEWS.get(name) for _, x in points)}
