"""The report of a comparison: one Markdown file and one HTML file with the same content, and their figures."""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...runs.identity import differences
from ...support.files import inside, write_atomically
from ..tables import markdown_table
from .answer import SCORE_WORDS, answer, notes
from .figures import DARK, LABELS, LIGHT, Theme, as_png, as_svg, draw_curves, draw_differences, draw_sweep
from .groups import Group, common_axes, window
from .histories import AXES
from .pages import Block, Code, Heading, Items, Picture, Table, Text, as_html, as_markdown
from .processes import cores, devices
from .results import Comparison
from .scoring import compare_results
from .settings_tables import rows_of, settings_of_credit
from .tables import secondary_blocks, sweep_blocks, verdict_blocks, verdict_table
from .tuning import tuned_rows


FIGURES = "figures"
_PACKAGES = ("trl-credit", "trl", "transformers", "torch", "numpy", "scipy")
_METHOD = (
    "A difference is the mean over seeds of the algorithm's score minus the baseline's with the same seed. Its "
    "interval and p are Student's t; where seeds differ they are Welch's. The sign-flip test enumerates all patterns "
    "of signs; n seeds give no p below 2^(1 − n). Holm's correction is over all algorithms that do not have the "
    "baseline's gradient. There is one primary metric; grid.json keeps which one was declared before the runs.",
    "The runs of an algorithm differ only in their seeds: the order of the data, the samples and, on the embedded "
    "task, the problems. An interval says nothing about other tasks, models or settings.",
)


def write_report(comparison: Comparison, results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes `report.md`, `report.html`, `results.json` and `figures/`; returns the first two.

    `results` is that of [`~trl_credit.lab.comparison.results.make_results`].

    Raises:
        OSError: the folder cannot be written to.
    """
    blocks = report_blocks(comparison, results)
    drawn = {}
    for stem in [block.stem for block in blocks if isinstance(block, Picture)]:
        for theme in (LIGHT, DARK):
            is_dark = theme is DARK
            figure = _draw(comparison, results, stem, theme)
            drawn[stem, is_dark] = as_svg(figure)
            path = inside(folder, FIGURES) / f"{stem}{'-dark' * is_dark}"
            write_atomically(f"{path}.svg", drawn[stem, is_dark])
            write_atomically(f"{path}.png", as_png(figure))
    write_atomically(folder / "results.json", json.dumps(results, indent=1, ensure_ascii=False))
    pages = [folder / "report.md", folder / "report.html"]
    write_atomically(pages[0], as_markdown(blocks, folder=FIGURES))
    write_atomically(pages[1], as_html(blocks, drawn))
    return pages


def console_answer(results: dict[str, Any]) -> str:
    """The answer, what must be known beside it, and the verdict table, for a terminal."""
    table = verdict_table(results)
    lines = [*answer(results), *notes(results), ""]
    return "\n".join([*lines, markdown_table(table.head, table.rows, right=True)] if table.rows else lines)


def report_blocks(comparison: Comparison, results: dict[str, Any]) -> list[Block]:
    """The content of a report: the answer and its figure first. `results` is the content of `results.json`."""
    groups, baseline = comparison.groups, comparison.baseline
    title = " · ".join(group.label for group in groups) if len(groups) < 5 else f"{len(groups)} algorithms"
    blocks: list[Block] = [Heading(title, 1), Text(" ".join(answer(results)))]
    rows = compare_results(results, results["primary"])
    if rows:
        alt = f"Difference of each algorithm from {baseline.label} with its 95 % interval"
        caption = f"Differences from {baseline.label} and their 95 % intervals. A filled point is a verdict."
        blocks.append(Picture("differences", alt, caption))
    runs = [run for _, run in comparison.runs]
    late = [f"{r.folder} ({r.totals['steps']:,.0f} of {r.planned:,} steps)" for r in runs if not r.is_finished]
    unfinished = [f"Not finished: {', '.join(late)}."] if late else []
    blocks.append(
        Items([*notes(results), *comparison.remarks, *unfinished, *_task_differences(groups), _counted(groups)])
    )
    blocks += _settings_beside(results)
    if rows:
        blocks += verdict_blocks(results)
    blocks += sweep_blocks(results)
    if tuned_rows(results):
        score = SCORE_WORDS[results["primary"]].format(metric=results["metric"])
        alt = f"{score} by {results['sweep']}, for each algorithm"
        blocks.append(Picture("sweep", alt, "Means over the tuning seeds. A ring marks the best value."))
    if rows:
        blocks += secondary_blocks(results)
    axes = common_axes(groups)
    blocks += _curves(comparison, axes)
    blocks += [Heading("Cost of a run", 2), Text("Means over the runs of an algorithm."), _cost_table(groups, axes)]
    blocks += _settings(comparison)
    packages = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    how = [packages, _machine(), *_METHOD]
    return [*blocks, Heading("How this was made", 2), Code(comparison.command), Items(how)]


def _draw(comparison: Comparison, results: dict[str, Any], stem: str, theme: Theme) -> Figure:
    metric, baseline = comparison.metric, comparison.baseline
    score = SCORE_WORDS[results["primary"]].format(metric=metric)
    if stem == "differences":
        rows, same = compare_results(results, results["primary"]), results["same_gradient"]
        return draw_differences(rows, score=score, baseline=baseline.label, same=same, theme=theme)
    if stem == "sweep":
        tuned = tuned_rows(results)
        return draw_sweep(tuned, setting=results["sweep"], score=score, baseline=baseline.label, theme=theme)
    return draw_curves(comparison.groups, stem, metric=metric, baseline=baseline, theme=theme)


def _counted(groups: Sequence[Group]) -> str:
    """How many runs of how many algorithms."""
    counts = sorted({len(group.runs) for group in groups})
    each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} each"
    whose = f"{len(groups)} algorithms, {each}" if len(groups) > 1 else "one algorithm"
    runs = sum(len(group.runs) for group in groups)
    return f"{runs} run{'s' * (runs > 1)} of {whose}."


def _curves(comparison: Comparison, axes: Sequence[str]) -> list[Block]:
    runs = [run for _, run in comparison.runs]
    size = window(max(len(run.values) for run in runs))
    smooth = f", smoothed over {size} logged points" if size > 1 else ""
    band = f"A line is the mean over runs{smooth}; a band goes from the lowest run to the highest."
    blocks: list[Block] = [Heading("Curves", 2), Text(band)]
    metric = comparison.metric
    blocks += [Picture(axis, f"{metric} against {AXES[axis]}", f"Against {AXES[axis]}.") for axis in axes]
    for axis in (name for name in AXES if name not in axes):
        why = next(f"{run.folder}: {run.unknown[axis]}" for run in runs if axis in run.unknown)
        blocks.append(Text(f"There is no curve against {AXES[axis]} ({why})."))
    return blocks


def _cost_table(groups: Sequence[Group], axes: Sequence[str]) -> Table:
    rows = []
    for group in groups:
        means = [np.mean([run.totals[axis] for run in group.runs]) for axis in axes]
        rows.append([group.label, " ".join(map(str, group.seeds)), *(f"{mean:,.0f}" for mean in means)])
    return Table(["algorithm", "seeds", *(LABELS[axis] for axis in axes)], rows)


def _task_differences(groups: Sequence[Group]) -> list[str]:
    """Sentences on what makes a comparison unfair: another model, reward or tokenizer, or other data."""
    first, *others = groups
    found = []
    for field, name in (("model", "model"), ("reward_funcs", "reward"), ("tokenizer", "tokenizer")):
        here, *there = ({field: group.runs[0].identity.get(field)} for group in groups)
        unlike = [g.label for g, value in zip(others, there, strict=True) if differences(here, value, defaults={})]
        if unlike:
            found.append(f"Different tasks: the {name} of {first.label} is not that of {', '.join(unlike)}.")
    # on the embedded task each seed has its own data, with another digest
    data = [run.identity.get("data") or {} for group in groups for run in group.runs]
    if len({json.dumps({**one, "content": None}, sort_keys=True) for one in data}) > 1:
        found.append("Different tasks: the data of the runs have different rows or columns.")
    return found


def _settings_beside(results: dict[str, Any]) -> list[Block]:
    """The settings beside the credit in which the algorithms differ."""
    if len(results["settings"]) < 2:
        return []
    blocks: list[Block] = [Heading("What differs beside the credit", 2)]
    head, rows = rows_of(results["settings"])
    if len(head) == 1:
        return [*blocks, Text("Nothing: all settings beside the credit agree.")]
    text = (
        "A difference between two algorithms may come from any of these (– for none, or an inactive setting). "
        "--equal NAME=VALUE holds one equal."
    )
    return [*blocks, Text(text), Table(head, rows)]


def _settings(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = [Heading("Settings of the credit", 2)]
    if comparison.left_out:
        items = [f"{label} has no {', '.join(names)}." for label, names in comparison.left_out.items()]
        blocks += [Text("Left out for algorithms that do not have them:"), Items(items)]
    head, rows = rows_of(settings_of_credit(comparison.groups))
    if len(head) > 1:
        blocks.append(Text("Differences between the algorithms (– for an inactive setting); all others agree."))
        blocks.append(Table(head, rows))
    return blocks if len(blocks) > 1 else []


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # importlib.metadata's PackageNotFoundError
        return "(not installed)"


def _machine() -> str:
    gpus = devices()
    count = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "no GPU"
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores()} cores, {count}"
