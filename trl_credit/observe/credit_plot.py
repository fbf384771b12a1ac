"""How credit was assigned over a run, as a figure with one panel for each kind of metric."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure


_RANKS = ("1st", "2nd", "3rd", *(f"{n}th" for n in range(4, 10)))
_ENTROPY = {
    f"coefficient/entropy_decile_{d}": f"{rank} tenth" for d, rank in enumerate(("lowest", *_RANKS[1:], "highest"))
}
_DIFFICULTY = {
    f"difficulty_weight/{prompts}_{name}": f"{prompts}, A {sign} 0"
    for prompts in ("harder", "easier")
    for name, sign in (("positive", ">"), ("negative", "<"))
}
_SAMPLED = {"nodes": "nodes", "nodes_trained": "nodes trained on", "rollouts": "rollouts", "rows": "rows"}


def _quarters(name: str) -> dict[str, str]:
    return {f"{name}/quarter_{q}": f"{rank} quarter" for q, rank in enumerate(_RANKS[:4], start=1)}


# title, unit, and the metrics of `credit/` with their labels in the legend; a name that ends in "/" stands for all
# metrics that begin with it. Values of panels in % are logged as shares.
PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("clipped tokens", "%", {"clip_fraction": "of all tokens", "clip_fraction/response_mean": "mean over responses"}),
    ("size of the advantage, by part of the response", "mean |A|", _quarters("abs_advantage")),
    ("credit of a token, by its entropy", "|dL/d log p| / |A|", _ENTROPY),
    ("credit of a token, by part of the response", "|dL/d log p| / |A|", _quarters("coefficient")),
    ("trace mass", "tokens", {"trace_mass": ""}),
    ("effective horizon", "tokens back", {"effective_horizon": ""}),
    ("tokens that leave a trace", "%", {"selected_fraction": ""}),
    ("tokens in the policy term", "%", {"kept_fraction": ""}),
    ("belief in the model's accuracy", "share correct", {"difficulty_belief": ""}),
    ("step size of the belief", "η_t", {"difficulty_rate": ""}),
    ("belief steps at the minimum size", "%", {"difficulty_floor": ""}),
    ("weight by difficulty", "factor on A", _DIFFICULTY),
    ("groups without signal", "%", {"groups_without_signal": ""}),
    ("different responses", "per group", {"unique_responses": ""}),
    ("skipped updates", "%", {"skipped_updates": ""}),
    ("updates with a gradient of 0", "%", {"zero_gradients": ""}),
    ("micro-batches without a forward pass", "%", {"skipped_micro_batches": ""}),
    ("time by phase", "seconds per step", {"seconds/": ""}),
    ("tokens of rollouts", "% of sampled tokens", {"rollout_token_share": ""}),
    ("value of segments", "reward", {"segment_value/": ""}),
    ("advantage of segments", "mean A", {"segment_advantage/": ""}),
    ("size of the advantage of nodes", "mean |A|", {"segment_abs_advantage/": ""}),
    ("nodes without advantage", "%", {"nodes_zero_advantage": ""}),
    ("sampled and trained on", "per batch", _SAMPLED),
    ("missing rows", "%", {"rows_missing": ""}),
    ("replay buffer", "rows", {"replay/size": "held", "replay/expired": "expired"}),
    ("age of replayed rows", "batches", {"replay/age": ""}),
)
PREFIX = "credit/"
_SEQUENCE, _MANY = colormaps["viridis_r"], 6  # colours of ordered lines, for panels of more than _MANY lines
# a metric that only ever has this value gets no panel
NO_NEWS = {
    **dict.fromkeys(("skipped_updates", "zero_gradients", "skipped_micro_batches", "rows_missing"), 0.0),
    **dict.fromkeys(("replay/age", "replay/size", "replay/expired"), 0.0),
    **dict.fromkeys(("kept_fraction", "rollout_token_share"), 1.0),  # for trees the latter is always 1
}


def plot_credit(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> list[str]:
    """Plots the metrics logged under `credit/` by optimizer step, one panel for each kind, to a PNG.

    A metric that `PANELS` does not name gets a panel of its own. The axis of a share ends at 100 %, or just above the
    largest value if all are below 10 %.

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
    panels = [(title, unit, names) for title, unit, labels in PANELS if (names := _names(labels, series))]
    known = {name for *_, names in panels for name in names}
    panels += [(name.replace("_", " "), "", {name: ""}) for name in sorted(set(series) - known)]
    if not panels:
        return []
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    # not pyplot, whose state is global and may need a display
    figure = Figure(figsize=(4 * columns, 2.6 * rows + 0.4), dpi=110, layout="constrained")
    for i, (heading, unit, names) in enumerate(panels):
        factor = 100 if unit.startswith("%") else 1
        axes = figure.add_subplot(rows, columns, i + 1)
        low, high = math.inf, -math.inf
        if len(names) > _MANY:
            axes.set_prop_cycle(color=_SEQUENCE(range(0, 256, 256 // len(names))))
        for j, (name, label) in enumerate(names.items()):
            steps, shares = zip(*series[name], strict=True)
            values = [factor * x for x in shares]
            # the first lines are the widest, so that lines that coincide stay visible
            width = 1.2 + min(0.8, 3 / len(names)) * (len(names) - 1 - j)
            axes.plot(steps, values, marker="." if len(steps) < 60 else None, linewidth=width, label=label)
            low, high = min(low, *values), max(high, *values)
        if factor == 100:
            axes.set_ylim(0, min(1.2 * high, 10) if 0 < high <= 10 else 100)
        elif low == high >= 0:  # the default axis would show noise around a constant
            axes.set_ylim(0, 2 * high or 1)
        axes.set_title(heading, fontsize=10)
        axes.set_ylabel(unit, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        if any(names.values()):
            size = {"fontsize": 6, "ncols": 2} if len(names) > _MANY else {"fontsize": 8}
            axes.legend(framealpha=0.8, edgecolor="none", **size)
        if i + columns >= len(panels):
            axes.set_xlabel("optimizer step", fontsize=9)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path)
    return [name for *_, names in panels for name in names]


def _series(log_history: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Steps and finite values of each metric, by its name without the prefix."""
    series = defaultdict(list)
    for row in log_history:
        for key, value in row.items():
            if key.startswith(PREFIX) and "step" in row and value is not None and math.isfinite(value):
                series[key.removeprefix(PREFIX)].append((row["step"], value))
    return {name: points for name, points in series.items() if any(x != NO_NEWS.get(name) for _, x in points)}


def _names(labels: dict[str, str], series: dict[str, Any]) -> dict[str, str]:
    """The logged metrics of a panel, with their labels."""
    found = {}
    for name, label in labels.items():
        if name.endswith("/"):
            found |= {n: n.removeprefix(name).replace("_", " ") for n in sorted(series) if n.startswith(name)}
        elif name in series:
            found[name] = label
    return found
