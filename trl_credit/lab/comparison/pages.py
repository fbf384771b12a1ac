"""A page of blocks, as Markdown and as one HTML file without scripts or network access."""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..tables import escape_markdown, markdown_table
from ..viewer.page import source_hash


_ASSETS = files(__package__) / "assets"


class Heading(NamedTuple):
    """A title of level 1 or 2."""

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
    """Rows as long as the head. The first column is a name."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """A figure, by the stem of its files."""

    stem: str
    alt: str
    caption: str


Block = Heading | Text | Items | Code | Table | Picture


def as_markdown(blocks: Sequence[Block], *, folder: str) -> str:
    """Blocks as GitHub's Markdown. Pictures are PNG files in `folder`."""
    return _render("report.md", blocks, html=False, folder=folder, table=markdown_table)


def as_html(blocks: Sequence[Block], drawn: Mapping[tuple[str, bool], str]) -> str:
    """Blocks as one HTML file.

    Args:
        blocks (list of blocks):
            The first one is the title.
        drawn (mapping):
            The SVG of each picture, by its stem and whether it is for a dark background. An SVG in an image element
            runs no script.
    """
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {source_hash(style)}; base-uri 'none'; form-action 'none'"
    encoded = {key: base64.b64encode(svg.encode("utf-8")).decode("ascii") for key, svg in drawn.items()}
    images = {key: f"data:image/svg+xml;base64,{svg}" for key, svg in encoded.items()}
    return _render("report.html", blocks, html=True, images=images, style=Markup(style), policy=policy)


def _render(template: str, blocks: Sequence[Block], *, html: bool, **values: Any) -> str:
    environment = Environment(
        autoescape=html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=not html
    )
    environment.filters["plain"] = escape_markdown
    text = (_ASSETS / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(blocks=[(type(block).__name__, block) for block in blocks], **values)
