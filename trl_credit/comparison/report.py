"""The report of a comparison: one Markdown file and one HTML file that say the same, with their figures."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..dead_knobs import live_part
from ..files import put_in_place, write_whole
from ..trainer.identity import differences
from . import figures
from .curves import Group, common_axes, window
from .histories import AXES
from .pages import Block, Code, Heading, Items, Picture, Table, Text, as_html, as_markdown
from .results import Row, Scores, compare, sentences
from .running import cores, devices
from .statistics import LEVEL, RESAMPLES


FIGURES = "figures"
REPORT = "report"
NUMBERS = "results.json"
_PACKAGES = ("trl-credit", "trl", "transformers", "torch", "numpy")


@dataclass(frozen=True)
class Comparison:
    """What a report is about.

    Attributes:
        groups: At least one, each with at least one run.
        baseline: One of them.
        metric: The score.
        command: By which the report is made.
        left_out: Settings for all that an algorithm does not have, by label.
        remarks: Sentences on what is missing, such as runs that failed.
    """

    groups: tuple[Group, ...]
    baseline: Group
    metric: str
    command: str
    left_out: dict[str, list[str]]
    remarks: tuple[str, ...] = ()


def write_report(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes `report.md`, `report.html`, `results.json` and `figures/`; returns the first two.

    Raises:
        OSError: the folder cannot be written to.
    """
    tables = compare(comparison.groups, comparison.baseline)
    blocks = report_blocks(comparison, tables)
    pictures = [block for block in blocks if isinstance(block, Picture)]
    drawn = {}
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        for ground in (figures.LIGHT, figures.DARK):
            dark = ground is figures.DARK
            figure = _draw(comparison, tables[0], picture.stem, ground)
            drawn[picture.stem, dark] = svg = figures.as_svg(figure)
            stem = picture.stem + ("-dark" if dark else "")
            write_whole(folder / FIGURES / f"{stem}.svg", svg)
            partial = folder / FIGURES / f"{stem}.partial"
            partial.write_bytes(figures.as_png(figure))
            put_in_place(partial, folder / FIGURES / f"{stem}.png")
    write_whole(folder / NUMBERS, json.dumps(_numbers(comparison, tables), indent=1, ensure_ascii=False))
    pages = [folder / f"{REPORT}.md", folder / f"{REPORT}.html"]
    write_whole(pages[0], as_markdown(blocks, folder=FIGURES))
    write_whole(pages[1], as_html(blocks, drawn))
    return pages


def _draw(comparison: Comparison, table: Scores, stem: str, ground: figures.Ground) -> Any:
    if stem == "scores":
        given = {"metric": comparison.metric, "baseline": comparison.baseline.label, "ground": ground}
        return figures.draw_scores(table.rows, **given)
    given = {"metric": comparison.metric, "baseline": comparison.baseline, "ground": ground}
    return figures.draw_curves(comparison.groups, stem, **given)


def report_blocks(comparison: Comparison, tables: Sequence[Scores]) -> list[Block]:
    """What a report says, in its order. `tables` are those of [`~trl_credit.comparison.results.compare`]."""
    groups, baseline = comparison.groups, comparison.baseline
    runs = [run for group in groups for run in group.runs]
    counts = sorted({len(group.runs) for group in groups})
    each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} each"
    whose = f"{len(groups)} algorithms, {each}" if len(groups) > 1 else "one algorithm"
    intro = f"{len(runs)} run{'s' * (len(runs) > 1)} of {whose}. The score is {comparison.metric}."
    blocks: list[Block] = [
        Heading(f"{' · '.join(g.label for g in groups)}" if len(groups) < 5 else f"{len(groups)} algorithms", 1),
        Text(intro),
    ]
    late = [f"{r.folder} ({r.totals['steps']:,.0f} of {r.planned:,} steps)" for r in runs if not r.is_finished]
    remarks = [*comparison.remarks, *([f"Not at their end: {', '.join(late)}."] if late else []), *_unlike(groups)]
    if remarks:
        blocks.append(Items(remarks))
    for table in tables:
        blocks += [Heading(table.title, 2), Text(table.says), _score_table(table, baseline)]
        if len(groups) > 1 or len(baseline.runs) < 3:
            blocks.append(Items(sentences(table, groups, baseline)))
        if table is tables[0]:
            alt = f"Interquartile mean of each algorithm, its interval, and how likely it is above {baseline.label}"
            caption = "Grey dots are runs; lines are 95 % intervals, where there are enough runs for any."
            blocks.append(Picture("scores", alt, caption))
    blocks += [Heading("Curves", 2), Text(_of_curves(groups))]
    for axis in common_axes(groups):
        blocks.append(Picture(axis, f"{comparison.metric} against {AXES[axis]}", f"Against {AXES[axis]}."))
    for axis in (name for name in AXES if name not in common_axes(groups)):
        why = next(f"{r.folder}: {r.unknown[axis]}" for r in runs if axis in r.unknown)
        blocks.append(Text(f"There is no curve against {AXES[axis]} ({why})."))
    blocks += [Heading("What a run took", 2), Text("Means over the runs of an algorithm."), _cost_table(groups)]
    blocks += _settings(comparison)
    blocks += [
        Heading("How this was made", 2),
        Code(comparison.command),
        Items([", ".join(f"{name} {_version(name)}" for name in _PACKAGES), _machine(), *_method()]),
    ]
    return blocks


def _score_table(table: Scores, baseline: Group) -> Table:
    head = ["algorithm", "runs", "IQM", "95 % interval", f"P(above {baseline.label})", "95 % interval", ""]
    rows = [
        [r.label, str(len(r.scores)), _n(r.middle), _i(r.interval), *_of_improvement(r), r.verdict] for r in table.rows
    ]
    return Table(head, rows)


def _of_improvement(row: Row) -> list[str]:
    return ["", ""] if row.improvement is None else [f"{row.improvement:.2f}", _i(row.improvement_interval, digits=2)]


def _n(value: float) -> str:
    return f"{value:.3f}"


def _i(interval: tuple[float, float] | None, *, digits: int = 3) -> str:
    return "–" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _cost_table(groups: Sequence[Group]) -> Table:
    axes = common_axes(groups)
    head = ["algorithm", "seeds", *(figures.LABELS[axis] for axis in axes)]
    rows = [
        [
            group.label,
            " ".join(map(str, group.seeds)),
            *(f"{np.mean([run.totals[axis] for run in group.runs]):,.0f}" for axis in axes),
        ]
        for group in groups
    ]
    return Table(head, rows)


def _of_curves(groups: Sequence[Group]) -> str:
    points = max(len(run.values) for group in groups for run in group.runs)
    size = window(points)
    smooth = f", each smoothed over {size} logged points" if size > 1 else ""
    return f"A line is the interquartile mean over runs{smooth}; a band goes from the lowest run to the highest."


def _unlike(groups: Sequence[Group]) -> list[str]:
    """Sentences on what makes a comparison unfair: another model, reward, or another size of data."""
    first, said = groups[0].runs[0].identity, []
    for name, of in (("model", "the model"), ("reward_funcs", "the reward"), ("tokenizer", "the tokenizer")):
        other = [g.label for g in groups if differences({name: first.get(name)}, _one(g, name), defaults={})]
        if other:
            said.append(f"Not one task: {of} of {groups[0].label} is not that of {', '.join(other)}.")
    rows = {json.dumps(_data(run.identity), sort_keys=True) for group in groups for run in group.runs}
    if len(rows) > 1:
        said.append("Not one task: the data of the runs differ in their rows or columns.")
    return said


def _one(group: Group, name: str) -> dict[str, Any]:
    return {name: group.runs[0].identity.get(name)}


def _data(identity: dict[str, Any]) -> dict[str, Any]:
    """Of the embedded task each seed has data of its own, whose digests differ."""
    return {name: value for name, value in (identity.get("data") or {}).items() if name != "content"}


def _settings(comparison: Comparison) -> list[Block]:
    groups = comparison.groups
    blocks: list[Block] = [Heading("Settings", 2)]
    if comparison.left_out:
        items = [f"{label} has no {', '.join(names)}." for label, names in comparison.left_out.items()]
        blocks += [Text("Left out where an algorithm does not have them:"), Items(items)]
    # of knobs that do nothing beside the others the value is no difference
    all_settings = [live_part(settings, settings) for settings in (group.runs[0].settings for group in groups)]
    every = dict.fromkeys(name for settings in all_settings for name in settings if name != "algorithm")
    names = [n for n in every if len({_short(s[n]) if n in s else None for s in all_settings}) > 1]
    if names:
        blocks.append(Text("What differs between the algorithms (– where it would do nothing); all else is the same."))
        rows = [[name, *(_short(s[name]) if name in s else "–" for s in all_settings)] for name in names]
        blocks.append(Table(["", *(group.label for group in groups)], rows))
    return blocks


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _method() -> list[str]:
    return [
        "IQM is the interquartile mean: the mean without the lowest and the highest ⌊n/4⌋ of n runs. Intervals are "
        f"percentiles ({100 * LEVEL:.0f} %) of {RESAMPLES:,} bootstrap draws of runs, stratified by algorithm. P is "
        "the share of pairs of runs in which the algorithm is above the baseline, ties by half (Agarwal et al. 2021, "
        "arXiv 2108.13264). Where all runs, or all pairs, come out the same there is no interval: a bootstrap would "
        "say that all is known.",
        "The runs of an algorithm differ in their seeds alone: the order of the data, what is sampled and, on the "
        "embedded task, the problems. An interval says nothing of other tasks, models or settings.",
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # of importlib.metadata
        return "(not installed)"


def _machine() -> str:
    gpus = devices()
    of = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "no GPU"
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores()} cores, {of}"


def _numbers(comparison: Comparison, tables: Sequence[Scores]) -> dict[str, Any]:
    """The same as JSON, with the score of every run."""
    return {
        "version": 1,
        "metric": comparison.metric,
        "baseline": comparison.baseline.label,
        "command": comparison.command,
        "remarks": list(comparison.remarks),
        "left_out": comparison.left_out,
        "runs": [
            {"algorithm": g.label, "seed": r.seed, "folder": os.fspath(r.folder), "finished": r.is_finished, **r.totals}
            for g in comparison.groups
            for r in g.runs
        ],
        "tables": {t.key: {"title": t.title, "rows": [row._asdict() for row in t.rows]} for t in tables},
    }
