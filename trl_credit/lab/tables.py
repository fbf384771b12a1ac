"""Tables in Markdown, padded so that they can be read in a terminal too, and names in a sentence."""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from io import StringIO

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from rich.text import Text


def escape_markdown(text: str) -> str:
    """Text on one line, with every character escaped that Markdown or HTML would interpret."""
    # an underscore inside a word needs no escape, and names are full of them
    return re.sub(r"([\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", " ".join(str(text).split()))


def listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """A Markdown table that ends in a newline. Cells are escaped, except for numbers and intervals.

    Args:
        head (`Sequence[str]`):
            Names of the columns.
        rows (`Sequence[Sequence[str]]`):
            Rows as long as `head`.
        right (`bool`, *optional*, defaults to `False`):
            Whether all columns but the first are aligned to the right.
    """
    number = re.compile(r"[\d.–\[\], %+−]*W?")  # an interval may be marked W, for Wilson
    cells = [[cell if number.fullmatch(cell) else escape_markdown(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * width for width in widths]
    if right:
        rule[1:] = [f"{'-' * max(2, width - 1)}:" for width in widths[1:]]
    lines = [cells[0], rule, *cells[1:]]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def for_terminal(text: str) -> str:
    """A text for the standard output. In a terminal, the cells of Markdown tables that are wider than it are wrapped;
    a table whose words do not fit becomes a list for each row."""
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty():
        return text
    return re.sub(r"(?:^\|.*\n?)+", lambda table: _wrapped(table[0], width), text, flags=re.MULTILINE)


def _wrapped(table: str, width: int) -> str:
    lines = table.splitlines()
    if max(map(len, lines)) <= width:
        return table
    head, rule, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    columns = [*zip(head, *rows, strict=True)]
    widths = [max(map(len, " ".join(column).split())) for column in columns]  # of the longest word
    spare = width - sum(widths) - 3 * len(widths) - 1
    if spare < 0:
        texts = (f"{'  ' * (i > 0)}{head[i]}: {cell}" for row in rows for i, cell in enumerate(row))
        return "\n".join(texts) + "\n"
    for _ in range(spare):  # to the column that needs most lines
        lines_of = [max(map(len, column)) / own for column, own in zip(columns, widths, strict=True)]
        widths[lines_of.index(max(lines_of))] += 1
    grid = Table(box=MARKDOWN)
    for name, mark, own in zip(head, rule, widths, strict=True):
        grid.add_column(Text(name), justify="right" if mark.endswith(":") else "left", width=own)
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(grid)
    return console.file.getvalue().strip() + "\n"


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table of rows by the name of the column. What a row lacks is a dash."""
    head = list(dict.fromkeys(column for row in rows for column in row))
    return markdown_table(head, [[row.get(column, "–") for column in head] for row in rows])
