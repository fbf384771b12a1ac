"""Rows as Markdown and JSON. Nothing that a model wrote gets into either."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .protocols import split_metric
from .store import write_atomically


ROWS_VERSION = 1
_MEANING = {
    "pass": "pass@k: one of k responses to a problem is right.",
    "best": "best@k: one of k draws with replacement from a problem's responses is right.",
    "avg": "avg@k: share of k responses that are right.",
    "maj": "maj@k: the most frequent answer of k is right.",
}
_WILSON = "W: Wilson's interval, since all problems scored the same, in which case a bootstrap gives a point."
_READINGS = (
    "Answers are read permissively, as the papers' graders do; columns that say strict want a value, as training does."
)
Row = dict[str, Any]


def row_key(row: Row) -> tuple[str | None, ...]:
    """What tells rows apart: a second row with the same key takes the place of the first."""
    return tuple(row[key] for key in ("model", "revision", "set", "protocol"))


def merge_rows(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """`old` with `new` in place of rows of the same key, and behind them."""
    rows = {row_key(row): row for row in old}
    rows.update({row_key(row): row for row in new})
    return list(rows.values())


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Writes `evaluation.json` and `evaluation.md`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"version": ROWS_VERSION, "rows": list(rows)}, indent=1)
    write_atomically(folder / "evaluation.json", content + "\n")
    write_atomically(folder / "evaluation.md", markdown(rows))


def read_rows(folder: Path) -> list[Row]:
    """The rows of `evaluation.json`, none if there is no such file.

    Raises:
        ValueError: the file is damaged or of another version.
    """
    path = folder / "evaluation.json"
    if not path.is_file():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, rows = content["version"], content["rows"]
        for row in rows:
            row_key(row)  # what every reader asks for
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or give another --output_dir") from error
    if version != ROWS_VERSION:
        raise ValueError(f"{path} has version {version}, and this is {ROWS_VERSION}: give another --output_dir")
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """One table with models as rows and metrics of sets as columns, and one by difficulty level where sets have levels.

    Cells are percent with the 95 % interval over problems: `61.2 [58.0, 64.1]`, or `0.0 [0.0, 13.8] W` where it is
    Wilson's.
    """
    names = {key: model_name(rows, key) for key in dict.fromkeys((r["model"], r["revision"]) for r in rows)}
    scored = [
        (r, metric, reading, score)
        for r in rows
        for reading, part in (("", "metrics"), (" strict", "metrics_strict"))
        for metric, score in r.get(part, {}).items()
    ]
    columns = list(dict.fromkeys((r["set"], r["protocol"], m, reading) for r, m, reading, _ in scored))
    cells = {(r["model"], r["revision"], r["set"], r["protocol"], m, reading): v for r, m, reading, v in scored}
    several = len({r["protocol"] for r in rows}) > 1
    head = ["model", *(f"{s} {m}{reading}{f' ({p})' if several else ''}" for s, p, m, reading in columns)]
    body = [[name, *(_cell(cells.get((*key, *column))) for column in columns)] for key, name in names.items()]
    kinds = dict.fromkeys(split_metric(m)[0] for _, _, m, _ in columns)
    meaning = " ".join(_MEANING[kind] for kind in kinds)
    scores = [v for r in rows for part in (r, *r["by_level"].values()) for v in part["metrics"].values()]
    scores += [score for *_, score in scored]
    wilson = f" {_WILSON}" if any(_is_wilson(score) for score in scores) else ""
    readings = f" {_READINGS}" if any(reading for *_, reading in columns) else ""
    text = f"{meaning}{readings} Percent, with 95 % bootstrap intervals over problems.{wilson}\n\n" + table(head, body)

    head = ["model", "set", "protocol", "problems", "samples", "temperature", "mean length (tokens)", "truncated"]
    body = [
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
    text += "\n" + table(head, body)

    levels = [row for row in rows if row["by_level"]]
    if levels:
        metrics = list(dict.fromkeys(m for row in levels for m in row["metrics"]))
        body = [
            [names[row["model"], row["revision"]], row["set"], row["protocol"], level, str(part["problems"])]
            + [_cell(part["metrics"].get(m)) for m in metrics]
            for row in levels
            for level, part in row["by_level"].items()
        ]
        text += "\nBy difficulty level.\n\n" + table(["model", "set", "protocol", "level", "problems", *metrics], body)
    return text


def escaped(text: str) -> str:
    """Text of which nothing is Markdown or HTML, on one line."""
    # an underscore within a word means nothing, and names are full of them
    return re.sub(r"([\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", " ".join(str(text).split()))


def model_name(rows: Sequence[Row], key: tuple[str, str | None]) -> str:
    """A model with its commit, where it has one."""
    model, revision = key
    return f"{model} ({revision[:12]})" if revision and sum(r["model"] == model for r in rows) else model


def _is_wilson(score: dict[str, Any]) -> bool:
    return score.get("interval") == "wilson"  # rows of 0.1 do not say how


def _cell(score: dict[str, Any] | None) -> str:
    if score is None:
        return "–"
    mark = " W" if _is_wilson(score) else ""
    return f"{100 * score['value']:.1f} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]{mark}"


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; what is not a number is escaped."""
    # cells of numbers are ours and stay readable
    rows = [[c if re.fullmatch(r"[\d.–\[\], %+−]*W?", c) else escaped(c) for c in row] for row in (head, *body)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    rows.insert(1, ["-" * width for width in widths])
    return "".join("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |\n" for row in rows)
