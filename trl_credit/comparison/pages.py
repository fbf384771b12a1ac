"""A page of blocks, as Markdown and as HTML that needs neither a script nor a network."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..viewer.page import source_hash


class Heading(NamedTuple):
    """A title, of level 1 or 2."""

    text: str
    level: int


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Items(NamedTuple):
    """A list."""

    items: Sequence[str]


class Code(NamedTuple):
    """A command."""

    text: str


class Table(NamedTuple):
    """Rows as long as the head; the first column is a name."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """A figure, by the stem of its files."""

    stem: str
    alt: str
    caption: str


Block = Heading | Text | Items | Code | Table | Picture


def as_markdown(blocks: Sequence[Block], *, folder: str) -> str:
    """Blocks as GitHub's Markdown; pictures are PNG files in `folder`."""
    parts = []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {_plain(text)}")
            case Text(text):
                parts.append(_plain(text))
            case Items(items):
                parts.append("\n".join(f"* {_plain(item)}" for item in items))
            case Code(text):
                parts.append(f"```bash\n{text}\n```")
            case Table(head, rows):
                lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
                first, rule, *rest = lines
                parts.append("\n".join([_line(first), f"|{'|'.join(rule)}|", *map(_line, rest)]))
            case Picture(stem, alt, caption):
                parts.append(f"![{_plain(alt)}]({folder}/{stem}.png)\n\n*{_plain(caption)}*")
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], drawn: Mapping[tuple[str, bool], str]) -> str:
    """Blocks as one HTML file.

    Args:
        blocks (list of blocks):
            The first one is the title.
        drawn (mapping):
            The SVG of each picture, by its stem and whether it is for dark ground. As an image an SVG runs nothing.
    """
    style = _asset("report.css")
    policy = f"default-src 'none'; img-src data:; style-src {source_hash(style)}; base-uri 'none'; form-action 'none'"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("report.html")).render(
        title=blocks[0].text,
        blocks=[(type(block).__name__, block) for block in blocks],
        images={key: _data_url(svg) for key, svg in drawn.items()},
        style=Markup(style),
        policy=policy,
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Text as Markdown in which it is nothing but text, on one line."""
    text = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def _data_url(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8')).decode('ascii')}"


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
