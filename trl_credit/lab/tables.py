"""Tables in Markdown, padded so that they can be read in a terminal too, and names in a sentence."""

import re
from collections.abc import Mapping, Sequence


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


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table of rows by the name of the column. What a row lacks is a dash."""
    head = list(dict.fromkeys(column for row in rows for column in row))
    return markdown_table(head, [[row.get(column, "–") for column in head] for row in rows])
