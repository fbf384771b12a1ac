"""The reward curve of a run."""

import math
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def plot_rewards(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> tuple[float, float] | None:
    """Draws mean reward by optimizer step, with its standard deviation over responses as a band, to a PNG.

    The band ends where the rewards of a step do: at the smallest and the largest that were given (`reward_min`,
    `reward_max`), where these were logged.

    Takes `trainer.state.log_history`. Returns the first and the last logged reward, or `None`, and writes nothing, if
    no reward was logged.
    """
    rows = [row for row in log_history if row.get("reward") is not None and "step" in row]
    if not rows:
        return None
    steps = [row["step"] for row in rows]
    reward = [row["reward"] for row in rows]
    spread = [row.get("reward_std") or 0.0 for row in rows]
    figure = Figure(
        figsize=(7, 4), dpi=120, layout="constrained"
    )  # no pyplot: its state is global and may need a screen
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low = [max(row["reward"] - s, row.get("reward_min", -math.inf)) for row, s in zip(rows, spread, strict=True)]
    high = [min(row["reward"] + s, row.get("reward_max", math.inf)) for row, s in zip(rows, spread, strict=True)]
    axes.fill_between(steps, low, high, alpha=0.15, linewidth=0, label="± standard deviation over responses")
    axes.plot(steps, reward, marker="." if len(steps) < 60 else None, label="mean reward")
    axes.set(xlabel="optimizer step", ylabel="reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
    return reward[0], reward[-1]
