"""The report of a comparison: one Markdown file and one HTML file with the same content, and their figures."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...config import active_part
from ...runs.identity import differences
from ...support.files import write_atomically
from ..statistics import LEVEL
from .figures import DARK, LABELS, LIGHT, Theme, as_png, as_svg, draw_curves, draw_scores
from .groups import Group, common_axes, window
from .histories import AXES, History
from .pages import Block, Code, Heading, Items, Picture, Table, Text, as_html, as_markdown
from .processes import cores, devices
from .scoring import RESAMPLES, ScoreRow, ScoreTable, score_tables, sentences


FIGURES = "figures"
_PACKAGES = ("trl-credit", "trl", "transformers", "torch", "numpy")
_METHOD = (
    "IQM is the interquartile mean: the mean without the lowest and the highest ⌊n/4⌋ of n runs. Intervals are "
    f"percentiles ({100 * LEVEL:.0f} %) of {RESAMPLES:,} bootstrap draws of runs, stratified by algorithm. P is the "
    "share of pairs of runs in which the algorithm is above the baseline, ties by half (Agarwal et al. 2021, arXiv "
    "2108.13264). If all runs, or all pairs, score the same there is no interval: a bootstrap would claim that the "
    "number is known exactly.",
    "The runs of an algorithm differ only in their seeds: the order of the data, the samples and, on the embedded "
    "task, the problems. An interval says nothing about other tasks, models or settings.",
)


@dataclass(frozen=True)
class Comparison:
    """What a report is about.

    Attributes:
        groups: At least one, each with at least one run.
        baseline: One of them.
        metric: Name of the score.
        command: Command that makes the report.
        left_out: Shared settings that an algorithm does not have, by label.
        remarks: Sentences on what is missing, such as runs that failed.
    """

    groups: tuple[Group, ...]
    baseline: Group
    metric: str
    command: str
    left_out: dict[str, list[str]]
    remarks: tuple[str, ...] = ()

    @property
    def runs(self) -> list[tuple[Group, History]]:
        """Every run with its group."""
        return [(group, run) for group in self.groups for run in group.runs]


def write_report(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes `report.md`, `report.html`, `results.json` and `figures/`; returns the first two.

    Raises:
        OSError: the folder cannot be written to.
    """
    tables = score_tables(comparison.groups, comparison.baseline)
    blocks = report_blocks(comparison, tables)
    drawn = {}
    for stem in [block.stem for block in blocks if isinstance(block, Picture)]:
        for theme in (LIGHT, DARK):
            is_dark = theme is DARK
            figure = _draw(comparison, tables[0], stem, theme)
            drawn[stem, is_dark] = as_svg(figure)
            path = folder / FIGURES / f"{stem}{'-dark' * is_dark}"
            write_atomically(f"{path}.svg", drawn[stem, is_dark])
            write_atomically(f"{path}.png", as_png(figure))
    write_atomically(folder / "results.json", json.dumps(_numbers(comparison, tables), indent=1, ensure_ascii=False))
    pages = [folder / "report.md", folder / "report.html"]
    write_atomically(pages[0], as_markdown(blocks, folder=FIGURES))
    write_atomically(pages[1], as_html(blocks, drawn))
    return pages


def report_blocks(comparison: Comparison, tables: Sequence[ScoreTable]) -> list[Block]:
    """The content of a report. `tables` are those of [`~trl_credit.lab.comparison.scoring.score_tables`]."""
    groups, baseline, metric = comparison.groups, comparison.baseline, comparison.metric
    runs = [run for _, run in comparison.runs]
    counts = sorted({len(group.runs) for group in groups})
    each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} each"
    whose = f"{len(groups)} algorithms, {each}" if len(groups) > 1 else "one algorithm"
    title = " · ".join(group.label for group in groups) if len(groups) < 5 else f"{len(groups)} algorithms"
    intro = f"{len(runs)} run{'s' * (len(runs) > 1)} of {whose}. The score is {metric}."
    blocks: list[Block] = [Heading(title, 1), Text(intro)]
    late = [f"{r.folder} ({r.totals['steps']:,.0f} of {r.planned:,} steps)" for r in runs if not r.is_finished]
    remarks = [
        *comparison.remarks,
        *([f"Not finished: {', '.join(late)}."] if late else []),
        *_task_differences(groups),
    ]
    if remarks:
        blocks.append(Items(remarks))
    for table in tables:
        blocks += [Heading(table.title, 2), Text(table.explanation), _score_table(table, baseline)]
        if found := sentences(table, groups, baseline):
            blocks.append(Items(found))
        if table is tables[0]:
            alt = f"Interquartile mean of each algorithm, its interval, and its probability of beating {baseline.label}"
            caption = "Grey dots are runs; lines are 95 % intervals, if there are enough runs."
            blocks.append(Picture("scores", alt, caption))
    size = window(max(len(run.values) for run in runs))
    smooth = f", smoothed over {size} logged points" if size > 1 else ""
    band = f"A line is the interquartile mean over runs{smooth}; a band goes from the lowest run to the highest."
    blocks += [Heading("Curves", 2), Text(band)]
    axes = common_axes(groups)
    blocks += [Picture(axis, f"{metric} against {AXES[axis]}", f"Against {AXES[axis]}.") for axis in axes]
    for axis in (name for name in AXES if name not in axes):
        why = next(f"{run.folder}: {run.unknown[axis]}" for run in runs if axis in run.unknown)
        blocks.append(Text(f"There is no curve against {AXES[axis]} ({why})."))
    blocks += [Heading("Cost of a run", 2), Text("Means over the runs of an algorithm."), _cost_table(groups, axes)]
    blocks += _settings(comparison)
    packages = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    blocks += [
        Heading("How this was made", 2),
        Code(comparison.command),
        Items([packages, _machine(), *_METHOD]),
    ]
    return blocks


def _draw(comparison: Comparison, table: ScoreTable, stem: str, theme: Theme) -> Figure:
    metric, baseline = comparison.metric, comparison.baseline
    if stem == "scores":
        return draw_scores(table.rows, metric=metric, baseline=baseline.label, theme=theme)
    return draw_curves(comparison.groups, stem, metric=metric, baseline=baseline, theme=theme)


def _score_table(table: ScoreTable, baseline: Group) -> Table:
    def cells(row: ScoreRow) -> list[str]:
        improvement = ["", ""]
        if row.improvement is not None:
            improvement = [f"{row.improvement:.2f}", _ends(row.improvement_interval, digits=2)]
        middle = [f"{row.middle:.3f}", _ends(row.interval, digits=3)]
        return [row.label, str(len(row.scores)), *middle, *improvement, row.verdict]

    head = ["algorithm", "runs", "IQM", "95 % interval", f"P(above {baseline.label})", "95 % interval", ""]
    return Table(head, [cells(row) for row in table.rows])


def _ends(interval: tuple[float, float] | None, *, digits: int) -> str:
    return "–" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


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


def _settings(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = [Heading("Settings", 2)]
    if comparison.left_out:
        items = [f"{label} has no {', '.join(names)}." for label, names in comparison.left_out.items()]
        blocks += [Text("Left out for algorithms that do not have them:"), Items(items)]
    # the value of an inactive knob is no difference
    by_group = [active_part(settings, settings) for settings in (group.runs[0].settings for group in comparison.groups)]
    names = dict.fromkeys(name for settings in by_group for name in settings if name != "algorithm")
    rows = [[name, *(_short(s[name]) if name in s else "–" for s in by_group)] for name in names]
    rows = [[name, *values] for name, *values in rows if len(set(values)) > 1]
    if rows:
        blocks.append(Text("Differences between the algorithms (– for an inactive setting); all other settings agree."))
        blocks.append(Table(["", *(group.label for group in comparison.groups)], rows))
    return blocks


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # importlib.metadata's PackageNotFoundError
        return "(not installed)"


def _machine() -> str:
    gpus = devices()
    count = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "no GPU"
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores()} cores, {count}"


def _numbers(comparison: Comparison, tables: Sequence[ScoreTable]) -> dict[str, Any]:
    """The content of `results.json`, with the score of every run."""
    return {
        "version": 1,
        "metric": comparison.metric,
        "baseline": comparison.baseline.label,
        "command": comparison.command,
        "remarks": list(comparison.remarks),
        "left_out": comparison.left_out,
        "runs": [
            {"algorithm": g.label, "seed": r.seed, "folder": os.fspath(r.folder), "finished": r.is_finished, **r.totals}
            for g, r in comparison.runs
        ],
        "tables": {t.key: {"title": t.title, "rows": [row._asdict() for row in t.rows]} for t in tables},
    }
