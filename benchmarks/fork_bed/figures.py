"""Figures of docs/results/forks.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .algorithms import ALGORITHMS
from .analysis import scores, verdicts
from .bed import SETTINGS


SHOWN = ("oracle", "vine_ppo", "spo_chain", "top_20", "lambda", "p_trace", "reference", "s_trace")
COLOURS = {"grpo": "#666666", "s_trace": "#c2410c", "reference": "#7c3aed", "vine_ppo": "#0f766e"}
COLOURS |= {"p_trace": "#2563eb", "lambda": "#a16207", "top_20": "#be185d", "spo_chain": "#15803d"}


def draw_figures(results: Mapping[str, Any], folder: Path) -> None:
    """`differences.png`, `crossing.png` and `rates.png`."""
    for name, figure in (
        ("differences", differences(results)),
        ("crossing", crossing(results)),
        ("rates", rates(results)),
    ):
        FigureCanvasAgg(figure).print_png(folder / f"{name}.png", metadata={"Software": None})


def differences(results: Mapping[str, Any]) -> Figure:
    """A panel for each setting: the paired difference from GRPO, tuned and untuned, with its interval. One scale."""
    figure = Figure(figsize=(10, 5.2), dpi=100, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flatten()
    for panel, (setting, about) in zip(panels, SETTINGS.items(), strict=True):
        for tuned, colour, shift in ((True, "#c2410c", 0.15), (False, "#2563eb", -0.15)):
            by_name = verdicts(results, setting, tuned=tuned)
            tests = [by_name[name].test for name in SHOWN]
            label = "best rate of each" if tuned else "rate 0.02"
            values, places = [test.value for test in tests], np.arange(len(SHOWN)) + shift
            widths = [test.high - test.value for test in tests]
            panel.errorbar(values, places, xerr=widths, fmt="o", markersize=3, color=colour, label=label, linewidth=1.2)
        panel.axvline(0, color="#999999", linewidth=0.8)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.grid(axis="x", color="#eeeeee", linewidth=0.8)
        panel.set_title(f"{setting}: {about.about}", fontsize=9)
        panel.set_yticks(range(len(SHOWN)), [_short(name) for name in SHOWN])
        panel.tick_params(labelsize=8)
    panels[0].legend(fontsize=7, frameon=False, loc="lower left")
    figure.suptitle("How much better than GRPO is each algorithm, at its best learning rate and at 0.02?", fontsize=11)
    figure.supxlabel("area under the curve minus GRPO's, 95 % paired t interval, 12 seeds", fontsize=8)
    return figure


def crossing(results: Mapping[str, Any]) -> Figure:
    """J over 450 updates in C at rate 0.02."""
    figure = Figure(figsize=(6, 3), dpi=100, layout="constrained")
    axes = figure.subplots()
    for name in ("grpo", "s_trace", "reference", "vine_ppo"):
        curve = results["units"][f"crossing/{name}"]["curve"]
        axes.plot(np.arange(1, len(curve) + 1) * 10, curve, color=COLOURS[name], label=_short(name), linewidth=1.4)
    axes.set_xlabel("updates", fontsize=8)
    axes.set_ylabel("expected reward", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False)
    axes.set_title("Does S-trace stay ahead of GRPO in a longer run? (C, rate 0.02)", fontsize=9)
    return figure


def rates(results: Mapping[str, Any]) -> Figure:
    """Area by learning rate in B and C, mean over the tuning seeds."""
    figure = Figure(figsize=(8, 3), dpi=100, layout="constrained")
    for axes, setting in zip(figure.subplots(1, 2, sharey=True), "BC", strict=True):
        for name in ("grpo", "s_trace", "p_trace", "lambda", "top_20", "vine_ppo", "spo_chain"):
            area = scores(results, f"{setting}/{name}")[0].mean(1)
            axes.plot(
                results["rates"], area, marker="o", markersize=3, color=COLOURS[name], label=_short(name), linewidth=1.2
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(results["rates"], [f"{rate:g}" for rate in results["rates"]])
        axes.set_title(f"{setting}: {SETTINGS[setting].about}", fontsize=9)
        axes.set_xlabel("learning rate", fontsize=8)
        axes.tick_params(labelsize=8)
    figure.suptitle("At which learning rate does each algorithm learn most?", fontsize=10)
    figure.axes[0].set_ylabel("area, mean of 6 tuning seeds", fontsize=8)
    figure.axes[0].legend(fontsize=7, frameon=False)
    return figure


def _short(name: str) -> str:
    return ALGORITHMS[name].label.replace("S-trace, z by the initial policy's entropy", "S-trace, initial entropy")
