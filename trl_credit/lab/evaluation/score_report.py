"""The scores of an evaluation folder: `evaluation.json`, `.md` and `.png`. They contain nothing that a model wrote."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...support.files import atomic_file, inside, read_json, write_atomically
from ..tables import escape_markdown, table_of
from .protocols import split_metric
from .sample_store import file_name
from .scores import Row


ROWS_VERSION = 1
_STEP = re.compile(r"(.*?)checkpoint-(\d+)/?")


def read_rows(folder: Path) -> list[Row]:
    """The rows of `evaluation.json`; none if there is no such file.

    Raises:
        ValueError: the file is damaged or of another version.
    """
    path = folder / "evaluation.json"
    if not path.is_file():
        return []
    try:
        content = read_json(path)
        if content["version"] != ROWS_VERSION:
            raise ValueError(f"version {content['version']} instead of {ROWS_VERSION}")
        return list({_key(row): row for row in content["rows"]}.values())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or give another --output_dir") from error


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Writes the table as JSON, Markdown and figure, or deletes the three files if there are no rows."""
    if not rows:
        for suffix in ("json", "md", "png"):
            (folder / f"evaluation.{suffix}").unlink(missing_ok=True)
        return
    content = json.dumps({"version": ROWS_VERSION, "rows": list(rows)}, indent=1)
    write_atomically(folder / "evaluation.json", content + "\n")
    write_atomically(folder / "evaluation.md", score_markdown(rows))
    with atomic_file(folder / "evaluation.png") as file:
        draw_rows(rows).savefig(file, format="png")


def add_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Adds rows to the table of a folder. A row replaces an earlier one of the same model, set and protocol."""
    write_rows(folder, list({_key(row): row for row in [*read_rows(folder), *rows]}.values()))


def forget_after(folder: str | Path, step: int) -> None:
    """Drops the evaluations of checkpoints later than `step`, by another run or by this one before an interruption.

    Called before training, on the main process. Without a folder it does nothing.

    Args:
        folder (`str` or `Path`):
            The run's `evaluation`. Rows of the run's final weights are dropped too, since training changes these.
        step (`int`):
            Optimizer step that the run resumes from; at 0 all checkpoints are dropped.

    Raises:
        ValueError: `evaluation.json` is damaged.
    """
    folder = Path(folder)
    rows, run = read_rows(folder), folder.resolve().parent.name
    stale = {row["model"] for row in rows if _is_late(row["model"], step) or PurePath(row["model"]).name == run}
    if stale:
        write_rows(folder, [row for row in rows if row["model"] not in stale])
    for model in stale:
        shutil.rmtree(inside(folder, "samples", file_name(model)), ignore_errors=True)


def score_markdown(rows: Sequence[Row]) -> str:
    """A table with models as rows and metrics of sets as columns, one of lengths, and one by difficulty level.

    Cells are percent with the 95 % interval over problems: `61.2 [58.0, 64.1]`, or `0.0 [0.0, 13.8] W` for Wilson's.
    """
    several = len({row["protocol"] for row in rows}) > 1
    scores: dict[str, dict[str, str]] = {}
    lengths, levels = [], []
    for row in rows:
        name = model_label(row)
        cells = scores.setdefault(name, {"model": name})
        for part, reading in (("metrics", ""), ("metrics_strict", " strict")):
            for metric, score in row.get(part, {}).items():
                protocol = f" ({row['protocol']})" if several else ""
                cells[f"{row['set']} {metric}{reading}{protocol}"] = _cell(score)
        head = {"model": name, "set": row["set"], "protocol": row["protocol"]}
        of_lengths = {"problems": str(row["problems"]), "samples": str(row["samples_per_problem"])}
        of_lengths["temperature"] = "greedy" if row["temperature"] == 0 else f"{row['temperature']:g}"
        of_lengths["mean length (tokens)"] = f"{row['mean_length_tokens']:.1f}"
        lengths.append(head | of_lengths | {"truncated": f"{100 * row['truncated_share']:.1f} %"})
        for level, part in row["by_level"].items():
            of_level = {metric: _cell(score) for metric, score in part["metrics"].items()}
            levels.append(head | {"level": level, "problems": str(part["problems"])} | of_level)
    return render(
        "evaluation.md.jinja",
        kinds={split_metric(metric)[0] for row in rows for metric in row["metrics"]},
        has_strict=any(row.get("metrics_strict") for row in rows),
        scores=table_of(list(scores.values())),
        lengths=table_of(lengths),
        levels=table_of(levels) if levels else "",
    )


def render(template: str, **values: Any) -> str:
    """A Markdown report from its template."""
    loader = PackageLoader(__package__, "")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"plain": escape_markdown, "points": in_points, "p": p_value}
    return environment.get_template(template).render(values)


def in_points(share: float) -> str:
    """A difference of scores in points of percent."""
    text = f"{100 * share:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def p_value(p: float) -> str:
    """A p-value with three digits."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def model_label(row: Row) -> str:
    """The model of a row or header, with its commit if there is one."""
    return f"{row['model']} ({row['revision'][:12]})" if row["revision"] else row["model"]


def _key(row: Row) -> tuple[str | None, ...]:
    return tuple(row[key] for key in ("model", "revision", "set", "protocol"))


def _is_late(model: str, step: int) -> bool:
    match = _STEP.fullmatch(model)
    return match is not None and match[1] == "" and (int(match[2]) > step or step == 0)


def _cell(score: dict[str, Any]) -> str:
    value, low, high = (100 * score[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]{' W' if score['interval'] == 'wilson' else ''}"


def draw_rows(rows: Sequence[Row]) -> Figure:
    """One panel per set and protocol, in percent; permissive scores if there are strict ones too.

    If all models of a panel are `checkpoint-<step>` of one run, a line per metric goes over the steps. Else the points
    of a model stand beside those of the others, by metric. The bars are 95 % intervals.
    """
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row['set']}, {row['protocol']}", []).append(row)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 5 * columns, 0.6 + 3.6 * lines), dpi=120, layout="constrained")  # pyplot has state
    for place, (title, panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        metrics = list(dict.fromkeys(metric for row in panel for metric in row["metrics"]))
        steps = [_STEP.fullmatch(row["model"]) for row in panel]
        of_one_run = len(panel) > 1 and all(steps) and len({match[1] for match in steps}) == 1
        series: dict[str, list[tuple[float, dict]]] = {}  # by label
        for i, (row, match) in enumerate(zip(panel, steps, strict=True)):
            for metric, score in row["metrics"].items():
                x = int(match[2]) if of_one_run else metrics.index(metric) + 0.6 * (i + 0.5) / len(panel) - 0.3
                series.setdefault(metric if of_one_run else row["model"][-32:], []).append((x, score))
        for label, points in series.items():
            points.sort(key=lambda point: point[0])
            value, low, high = 100 * np.array([[score[key] for _, score in points] for key in ("value", "low", "high")])
            # a percentile interval of a skewed score may exclude the score itself
            bars = np.clip([value - low, high - value], 0.0, None)
            # a $ starts a formula, and labels with a leading _ are omitted
            label, style = label.replace("$", r"\$").lstrip("_") or "model", "o-" if of_one_run else "o"
            axes.errorbar([x for x, _ in points], value, bars, fmt=style, capsize=3, label=label)
        if of_one_run:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("optimizer step", labelpad=0)
        else:
            axes.set_xticks(range(len(metrics)), metrics)
            axes.set_xlim(-1, len(metrics))
        axes.set_title(title.replace("$", r"\$"))
        axes.set_ylabel("percent, read permissively" if any(row.get("metrics_strict") for row in panel) else "percent")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize="small")
    return figure
