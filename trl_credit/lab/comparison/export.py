"""The tables of a comparison as Markdown, CSV and LaTeX, and its curves as Parquet."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ...support.files import atomic_file, inside, write_atomically
from ...support.functions import unique_names
from ..tables import markdown_table
from .groups import Group


TABLES, CURVES = "tables", "curves.parquet"
INTERVAL = "95 % interval"
# what pdflatex cannot set by itself
_LATEX = {"−": "$-$", "–": "--", "…": r"\ldots{}", "λ": r"$\lambda$", "β": r"$\beta$", "ε": r"$\varepsilon$"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other signs in its default fonts


class Table(NamedTuple):
    """Rows as long as the head. The first column is a name."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_tables(tables: Mapping[str, Table], folder: Path) -> None:
    """Writes each table that has rows to `tables/`, as Markdown, as LaTeX with booktabs, and as CSV.

    In a CSV file an interval is the last two columns, and a name that a spreadsheet would take for a formula begins
    with an apostrophe.
    """
    for name, table in tables.items():
        if not table.rows or len(table.head) < 2:
            continue
        path = inside(folder, TABLES) / name
        frame = pd.DataFrame(list(table.rows), columns=unique_names(table.head))
        frame = frame.map(lambda text: " ".join(text.split()))
        write_atomically(f"{path}.md", markdown_table(*table, right=True))
        latex = frame.to_latex(index=False, escape=True, column_format="l" + "r" * (len(table.head) - 1))
        write_atomically(f"{path}.tex", latex.translate(str.maketrans(_LATEX)))
        frame = frame.map(_cell)
        if INTERVAL in frame:
            ends = frame.pop(INTERVAL).str.strip("[]").str.split(", ", expand=True).reindex(columns=range(2))
            frame = frame.assign(low=ends[0], high=ends[1])
        write_atomically(f"{path}.csv", frame.to_csv(index=False))


def _cell(text: str) -> str:
    plain = "" if text == "–" else text.replace("−", "-")
    is_number = re.fullmatch(r"[+-][\d.]+(e-?\d+)?", plain)
    return plain if is_number or not plain.startswith(("=", "+", "-", "@")) else f"'{plain}"


def write_curves(groups: Sequence[Group], folder: Path, *, metric: str) -> None:
    """Writes a row for each point of each run: `label`, `seed`, `metric`, `value`, and its position on each axis."""
    points = [
        pd.DataFrame({"label": group.label, "seed": run.seed, "metric": metric, "value": run.values, **run.axes})
        for group in groups
        for run in group.runs
    ]
    with atomic_file(folder / CURVES) as file:
        pd.concat(points, ignore_index=True).to_parquet(file, index=False)
