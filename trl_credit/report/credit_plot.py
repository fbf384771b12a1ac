"""How credit was assigned over a run, as small plots."""

import math
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


_RANKS = ("1st", "2nd", "3rd", "4th")
# title, unit, factor, and what the metrics of `credit/` are called in the legend; a name that ends in "/" stands for
# all that begin with it
PANELS: tuple[tuple[str, str, float, dict[str, str]], ...] = (
    (
        "clipped tokens",
        "%",
        100,
        {"clip_fraction": "of all tokens", "clip_fraction/response_mean": "mean over responses"},
    ),
    (
        "size of the advantage, by part of the response",
        "mean |A|",
        1,
        {f"abs_advantage/quarter_{q}": f"{rank} quarter" for q, rank in enumerate(_RANKS, start=1)},
    ),
    (
        "credit of a token, by its entropy",
        "|dL/d log p| / |A|",
        1,
        {
            f"coefficient/entropy_decile_{d}": f"{rank} tenth"
            for d, rank in enumerate(("lowest", *_RANKS[1:], *(f"{n}th" for n in range(5, 10)), "highest"))
        },
    ),
    (
        "credit of a token, by part of the response",
        "|dL/d log p| / |A|",
        1,
        {f"coefficient/quarter_{q}": f"{rank} quarter" for q, rank in enumerate(_RANKS, start=1)},
    ),
    ("trace mass", "tokens", 1, {"trace_mass": ""}),
    ("effective horizon", "tokens back", 1, {"effective_horizon": ""}),
    ("tokens that leave a trace", "%", 100, {"selected_fraction": ""}),
    ("tokens in the policy term", "%", 100, {"kept_fraction": ""}),
    ("belief in the model's accuracy", "share right", 1, {"difficulty_belief": ""}),
    ("step of the belief", "η_t", 1, {"difficulty_rate": ""}),
    ("steps by the floor", "%", 100, {"difficulty_floor": ""}),
    (
        "weight by difficulty",
        "factor on A",
        1,
        {
            "difficulty_weight/harder_positive": "harder, A > 0",
            "difficulty_weight/harder_negative": "harder, A < 0",
            "difficulty_weight/easier_positive": "easier, A > 0",
            "difficulty_weight/easier_negative": "easier, A < 0",
        },
    ),
    ("groups without signal", "%", 100, {"groups_without_signal": ""}),
    ("different responses", "per group", 1, {"unique_responses": ""}),
    ("updates left out", "%", 100, {"skipped_updates": ""}),
    ("micro-batches without a pass", "%", 100, {"skipped_micro_batches": ""}),
    ("time by phase", "seconds per step", 1, {"seconds/": ""}),
    ("tokens of rollouts", "% of sampled tokens", 100, {"rollout_token_share": ""}),
    ("value of segments", "reward", 1, {"segment_value/": ""}),
    ("advantage of segments", "mean A", 1, {"segment_advantage/": ""}),
    ("size of the advantage of nodes", "mean |A|", 1, {"segment_abs_advantage/": ""}),
    ("nodes without advantage", "%", 100, {"nodes_zero_advantage": ""}),
    (
        "sampled and trained on",
        "per batch",
        1,
        {"nodes": "nodes", "nodes_trained": "nodes trained on", "rollouts": "rollouts", "rows": "rows"},
    ),
    ("rows that were missing", "%", 100, {"rows_missing": ""}),
    ("replay buffer", "rows", 1, {"replay/size": "held", "replay/expired": "expired"}),
    ("age of replayed rows", "batches", 1, {"replay/age": ""}),
)
PREFIX = "credit/"
_SEQUENCE, _MANY = colormaps["viridis_r"], 6  # colours of lines that have an order, from so many on
# what a metric is when there is nothing to say: it is left out where it never differs
NO_NEWS = {
    "skipped_updates": 0.0,
    "skipped_micro_batches": 0.0,
    "kept_fraction": 1.0,
    "rollout_token_share": 1.0,  # of trees, always
    "rows_missing": 0.0,
    "replay/age": 0.0,
    "replay/size": 0.0,
    "replay/expired": 0.0,
}


def plot_credit(log_history: list[dict[str, Any]], path: str | Path, *, title: str) -> list[str]:
    """Draws what was logged under `credit/` by optimizer step, a small plot for each kind, to a PNG.

    Takes `trainer.state.log_history`. Metrics that this module does not know get a plot under their own name. Shares
    have an axis from 0 to 100 %, or to what is close above them where all are below 10 %.

    Returns:
        `list[str]`: the metrics that were drawn. If it is empty, nothing was written.
    """
    series = _series(log_history)
    panels = [(*panel[:3], names) for panel in PANELS if (names := _names(panel[3], series))]
    known = {name for *_, names in panels for name in names}
    panels += [(name.replace("_", " "), "", 1, {name: ""}) for name in sorted(set(series) - known)]
    if not panels:
        return []
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4 * columns, 2.6 * rows + 0.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: its state is global and may need a screen
    for i, (heading, unit, factor, names) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        low, high = math.inf, -math.inf
        colors = _SEQUENCE(range(0, 256, 256 // len(names))) if len(names) > _MANY else None
        for j, (name, label) in enumerate(names.items()):
            steps, values = series[name][0], [v * factor for v in series[name][1]]
            # the first lines are the widest, so that all are seen where they coincide
            width = 1.2 + min(0.8, 3 / len(names)) * (len(names) - 1 - j)
            color = {} if colors is None else {"color": colors[j]}
            axes.plot(steps, values, marker="." if len(steps) < 60 else None, linewidth=width, label=label, **color)
            low, high = min(low, *values), max(high, *values)
        if factor == 100:
            axes.set_ylim(0, min(1.2 * high, 10) if 0 < high <= 10 else 100)
        elif low == high >= 0:  # or the axis would show noise around a constant
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


def _series(log_history: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and finite values by metric, without the prefix."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in log_history:
        for key, value in row.items():
            if key.startswith(PREFIX) and "step" in row and value is not None and math.isfinite(value):
                steps, values = series.setdefault(key.removeprefix(PREFIX), ([], []))
                steps.append(row["step"])
                values.append(value)
    return {n: s for n, s in series.items() if any(value != NO_NEWS.get(n) for value in s[1])}


def _names(wanted: dict[str, str], series: dict[str, Any]) -> dict[str, str]:
    """The metrics of a panel that were logged, with their labels."""
    found = {}
    for name, label in wanted.items():
        if name.endswith("/"):
            found |= {n: n.removeprefix(name).replace("_", " ") for n in sorted(series) if n.startswith(name)}
        elif name in series:
            found[name] = label
    return found
