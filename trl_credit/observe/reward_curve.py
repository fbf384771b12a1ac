"""The reward curve of a run."""

import math
from pathlib import Path
from typing import Any

# not pyplot, whose state is global and may need a display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..support.files import atomic_file


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
        `tuple[float, float]` or `None`: the first and the last logged reward. If there is none, no file is written.
    """
    rows = [row for row in log_history if row.get("reward") is not None and "step" in row]
    if not rows:
        return None
    deviations = [row.get("reward_std") or 0.0 for row in rows]
    steps, rewards = [row["step"] for row in rows], [row["reward"] for row in rows]
    low = [max(row["reward"] - x, row.get("reward_min", -math.inf)) for row, x in zip(rows, deviations, strict=True)]
    high = [min(row["reward"] + x, row.get("reward_max", math.inf)) for row, x in zip(rows, deviations, strict=True)]
    figure = Figure(figsize=(7, 4), dpi=120)
    axes = figure.add_subplot(title=title, xlabel="optimizer step", ylabel="reward")
    axes.fill_between(steps, low, high, alpha=0.15, linewidth=0, label="± standard deviation over responses")
    axes.plot(steps, rewards, marker=".", label="mean reward")
    axes.legend(loc="lower right", frameon=False)
    save_png(figure, path)
    return rewards[0], rewards[-1]


def save_png(figure: Figure, path: str | Path) -> None:
    """Draws a figure and writes it. `Figure.savefig` draws it twice."""
    with atomic_file(path) as partial:
        FigureCanvasAgg(figure).print_png(partial)
