"""The scores of an evaluation folder: `evaluation.json`, `.md` and `.png`. They contain nothing that a model wrote."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from ...support.files import inside, read_json, write_atomically
from ..tables import markdown_table
from .plots import draw_rows
from .protocols import split_metric
from .sample_store import file_name
from .scores import Row


ROWS_VERSION = 1
_MEANING = {
    "pass": "pass@k: one of k responses to a problem is right.",
    "best": "best@k: one of k draws with replacement from a problem's responses is right.",
    "avg": "avg@k: share of k responses that are right.",
    "maj": "maj@k: the most frequent answer of k is right.",
}
_STRICT = "Answers are read permissively, as the papers' graders do; strict columns need a value, as training does."
_WILSON = "W: Wilson's interval, since all problems scored the same and a bootstrap gives a point."


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
        version, rows = content["version"], content["rows"]
        for row in rows:
            _key(row)
            for score in row["metrics"].values():
                score["interval"]  # a KeyError if it is missing
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or give another --output_dir") from error
    if version != ROWS_VERSION:
        raise ValueError(f"{path} has version {version}, and this is {ROWS_VERSION}: give another --output_dir")
    return rows


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Writes the table as JSON, Markdown and figure, or deletes the three files if there are no rows."""
    if not rows:
        for suffix in ("json", "md", "png"):
            (folder / f"evaluation.{suffix}").unlink(missing_ok=True)
        return
    content = json.dumps({"version": ROWS_VERSION, "rows": list(rows)}, indent=1)
    write_atomically(folder / "evaluation.json", content + "\n")
    write_atomically(folder / "evaluation.md", score_markdown(rows))
    write_atomically(folder / "evaluation.png", draw_rows(rows))


def add_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Adds rows to the table of a folder. A row replaces an earlier one of the same model, set and protocol."""
    merged = {_key(row): row for row in [*read_rows(folder), *rows]}
    write_rows(folder, list(merged.values()))


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
    rows = read_rows(folder)
    run = folder.resolve().parent.name
    stale = {row["model"] for row in rows if _is_late(row["model"], step) or PurePath(row["model"]).name == run}
    if stale:
        write_rows(folder, [row for row in rows if row["model"] not in stale])
    for model in stale:
        shutil.rmtree(inside(folder, "samples", file_name(model)), ignore_errors=True)


def score_markdown(rows: Sequence[Row]) -> str:
    """A table with models as rows and metrics of sets as columns, one of lengths, and one by difficulty level.

    Cells are percent with the 95 % interval over problems: `61.2 [58.0, 64.1]`, or `0.0 [0.0, 13.8] W` for Wilson's.
    """
    names = {(row["model"], row["revision"]): model_label(row) for row in rows}
    cells = {
        (row["model"], row["revision"], row["set"], row["protocol"], metric, suffix): score
        for row in rows
        for suffix, part in (("", "metrics"), (" strict", "metrics_strict"))
        for metric, score in row.get(part, {}).items()
    }
    columns = list(dict.fromkeys(key[2:] for key in cells))
    several = len({row["protocol"] for row in rows}) > 1
    head = ["model", *(f"{s} {metric}{suffix}{f' ({p})' if several else ''}" for s, p, metric, suffix in columns)]
    scores = [[name, *(_cell(cells.get((*key, *column))) for column in columns)] for key, name in names.items()]
    level_scores = [s for r in rows for part in r["by_level"].values() for s in part["metrics"].values()]
    notes = list(dict.fromkeys(_MEANING[split_metric(metric)[0]] for _, _, metric, _ in columns))
    notes += [_STRICT] if any(suffix for *_, suffix in columns) else []
    notes += ["Percent, with 95 % bootstrap intervals over problems."]
    notes += [_WILSON] if any(map(_is_wilson, [*cells.values(), *level_scores])) else []
    text = " ".join(notes) + "\n\n" + markdown_table(head, scores)

    head = ["model", "set", "protocol", "problems", "samples", "temperature", "mean length (tokens)", "truncated"]
    lengths = [
        [
            names[row["model"], row["revision"]],
            row["set"],
            row["protocol"],
            str(row["problems"]),
            str(row["samples_per_problem"]),
            "greedy" if row["temperature"] == 0 else f"{row['temperature']:g}",
            f"{row['mean_length_tokens']:.1f}",
            f"{100 * row['truncated_share']:.1f} %",
        ]
        for row in rows
    ]
    text += "\n" + markdown_table(head, lengths)

    metrics = list(dict.fromkeys(metric for row in rows if row["by_level"] for metric in row["metrics"]))
    levels = [
        [names[row["model"], row["revision"]], row["set"], row["protocol"], level, str(part["problems"])]
        + [_cell(part["metrics"].get(metric)) for metric in metrics]
        for row in rows
        for level, part in row["by_level"].items()
    ]
    if levels:
        head = ["model", "set", "protocol", "level", "problems", *metrics]
        text += "\nBy difficulty level.\n\n" + markdown_table(head, levels)
    return text


def model_label(row: Row) -> str:
    """The model of a row or header, with its commit if there is one."""
    return f"{row['model']} ({row['revision'][:12]})" if row["revision"] else row["model"]


def _key(row: Row) -> tuple[str | None, ...]:
    return tuple(row[key] for key in ("model", "revision", "set", "protocol"))


def _is_late(model: str, step: int) -> bool:
    match = re.fullmatch(r"checkpoint-(\d+)", model)
    return match is not None and (int(match[1]) > step or step == 0)


def _is_wilson(score: dict[str, Any]) -> bool:
    return score["interval"] == "wilson"


def _cell(score: dict[str, Any] | None) -> str:
    if score is None:
        return "–"
    value, low, high = (100 * score[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]{' W' if _is_wilson(score) else ''}"
