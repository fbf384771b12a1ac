"""The reward curve of a run."""

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .figures import add_axes, save_png


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
    low, high = [], []
    for row in rows:
        std = row.get("reward_std") or 0.0
        low.append(max(row["reward"] - std, row.get("reward_min", -math.inf)))
        high.append(min(row["reward"] + std, row.get("reward_max", math.inf)))
    steps, rewards = [row["step"] for row in rows], [row["reward"] for row in rows]
    figure = Figure(figsize=(7, 4), dpi=120)
    axes = add_axes(figure, left=0.75, bottom=0.55, right=6.9, top=3.65)
    axes.fill_between(steps, low, high, alpha=0.15, linewidth=0, label="± standard deviation over responses")
    axes.plot(steps, rewards, marker="." if len(steps) < 60 else None, label="mean reward")
    axes.set(xlabel="optimizer step", ylabel="reward")
    axes.set_title(title, y=1)
    axes.legend(loc="lower right", frameon=False)
    save_png(figure, path)
    return rewards[0], rewards[-1]
