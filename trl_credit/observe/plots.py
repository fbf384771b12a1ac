"""The figures of a run: its rewards, and how credit was assigned. The logs hold all metrics."""

import math
import textwrap
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

# not pyplot, whose state is global and may need a display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..support.files import atomic_file


PREFIX = "credit/"
_HEIGHT, _BELOW = 3.9, 0.9  # of a panel and of the texts below its axes, in inches
_LETTERS = 70  # in a line of a sentence, which may have three
# a metric that only ever has this value is not drawn; for trees the share of rollouts is always 1
_NO_NEWS = {"skipped_updates": 0.0, "zero_gradients": 0.0, "kept_fraction": 1.0, "rollout_token_share": 1.0}
_NO_NEWS |= {"teacher/no_context": 0.0}
# what a run cost and the state of its parts are in the logs alone
_IN_LOGS = (
    *("seconds/", "trained_tokens_per_row", "skipped_micro_batches", "rollout_tokens", "rollouts", "nodes", "rows"),
    *("responses_", "segments_per_response", "replay/", "difficulty_rate", "difficulty_floor", "groups/"),
    *("effective_horizon", "selected_fraction", "noise_share", "last_tokens_share", "abs_advantage"),
)
# how the names of a panel's metrics begin, and what it shows; other metrics have a panel each
PANELS: dict[str, str] = yaml.safe_load((files(__package__) / "panels.yaml").read_text(encoding="utf-8"))


def plot_rewards(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> tuple[float, float] | None:
    """Plots the mean reward by optimizer step to a PNG, with a band of one standard deviation over responses.

    The band stays between the smallest and the largest reward of a step (`reward_min`, `reward_max`), if logged.

    Args:
        log_history (`list[dict]`):
            `trainer.state.log_history`.
        path (`str` or `Path`):
            The PNG file.
        title (`str`):
            Title of the figure.

    Returns:
        `tuple[float, float]` or `None`: the first and the last logged reward. If there is none, no file is left.
    """
    Path(path).unlink(missing_ok=True)  # an earlier run's
    if not (rows := [row for row in log_history if row.get("reward") is not None and "step" in row]):
        return None
    steps, rewards = [row["step"] for row in rows], [row["reward"] for row in rows]
    deviation = {row["step"]: row.get("reward_std") or 0.0 for row in rows}
    low = [max(row["reward"] - deviation[row["step"]], row.get("reward_min", -math.inf)) for row in rows]
    high = [min(row["reward"] + deviation[row["step"]], row.get("reward_max", math.inf)) for row in rows]
    figure = Figure(figsize=(7, 4), dpi=120)
    axes = figure.add_subplot(title=title, xlabel="optimizer step", ylabel="reward")
    axes.fill_between(steps, low, high, alpha=0.15, linewidth=0, label="± standard deviation over responses")
    axes.plot(steps, rewards, marker=".", label="mean reward")
    axes.legend(loc="lower right", frameon=False)
    _save_png(figure, path)
    return rewards[0], rewards[-1]


def plot_credit(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> list[str]:
    """Plots metrics logged under `credit/` by optimizer step to a PNG: each of `PANELS` that has values, then one panel
    for each other metric. Axes begin at 0, so that they show no noise. The arguments are those of [`plot_rewards`].

    Returns:
        `list[str]`: the metrics in the plot. If it is empty, no file is left.
    """
    Path(path).unlink(missing_ok=True)  # an earlier run's
    series = _series(log_history)
    panels = {begin: [name for name in series if name.startswith(begin)] for begin in PANELS}
    known = {name for names in panels.values() for name in names}
    panels |= {name: [name] for name in sorted(series) if name not in known and not name.startswith(_IN_LOGS)}
    if not (panels := {begin: names for begin, names in panels.items() if names}):
        return []
    rows = math.ceil(len(panels) / 2)
    height = _HEIGHT * rows + 0.4
    figure = Figure(figsize=(11, height), dpi=110)
    # fixed margins, since matplotlib's search for a layout takes as long as drawing
    gap = (_BELOW + 0.4) / (_HEIGHT - _BELOW - 0.4)
    figure.subplots_adjust(0.07, _BELOW / height, 0.98, 1 - 0.7 / height, wspace=0.18, hspace=gap)
    for i, (begin, names) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, 2, i, title=begin.replace("_", " "))
        for name in names:
            label = name.partition("/")[2].replace("_", " ") or "all"
            axes.plot(*zip(*series[name], strict=True), marker=".", label=label)
        values = [value for name in names for _, value in series[name]]
        reach = 1.1 * max(map(abs, values)) or 1.0
        axes.set_ylim(-reach if min(values) < 0 else 0.0, reach)
        axes.set_xlabel("\n".join(["optimizer step", *textwrap.wrap(PANELS.get(begin, ""), _LETTERS)]), fontsize=9)
        if names != [begin]:
            axes.legend(fontsize=8 if len(names) < 7 else 6, ncols=1 + (len(names) > 6))
    figure.suptitle(title)
    _save_png(figure, path)
    return [name for names in panels.values() for name in names]


def _series(log_history: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Steps and finite values of each metric, by its name without the prefix."""
    series = defaultdict(list)
    for row in log_history:
        for key, value in row.items():
            if key.startswith(PREFIX) and "step" in row and value is not None and math.isfinite(value):
                series[key.removeprefix(PREFIX)].append((row["step"], value))
    return {name: points for name, points in series.items() if any(x != _NO_NEWS.get(name) for _, x in points)}


def _save_png(figure: Figure, path: str | Path) -> None:
    """Draws a figure and writes it. `Figure.savefig` draws it twice."""
    with atomic_file(path) as partial:
        FigureCanvasAgg(figure).print_png(partial)
