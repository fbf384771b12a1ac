"""`trl-credit help`: lists the pages of the documentation, and prints one. Imports no torch."""

import re
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from ..settings.parser import OneLineParser
from ..support.errors import choose, did_you_mean
from ..support.packaged import packaged_folder


_HELP = """\
Prints a page of the documentation.

  trl-credit help              lists the pages
  trl-credit help TOPIC        prints a page
  trl-credit help COMMAND      prints `trl-credit COMMAND --help`, if no page has that name
"""
_WIDEST = 120  # columns; the code of the pages fits


def main(argv: list[str]) -> int:
    """The exit code 0. Raises `ValueError` for a topic that there is not."""
    from . import COMMANDS

    parser = OneLineParser(prog="trl-credit help", description=_HELP, usage="%(prog)s …")
    parser.add_argument("topic", nargs="?", help="name of a page")
    topic, pages = parser.parse_args(argv).topic, topics()
    if topic is None:
        print("\n".join(["trl-credit help TOPIC prints a page:\n", *(f"  {n:<22}{title(n)}" for n in pages)]))
    elif topic in pages:
        _show(text_of(topic))
    elif topic in COMMANDS:
        return import_module(f".{topic}", __package__).main(["--help"])
    else:
        meant = did_you_mean(topic, [*pages, *COMMANDS]) or choose(topic, pages)
        raise ValueError(f"there is no page {topic!r}{meant}")
    return 0


def topics() -> list[str]:
    """The names of the pages: those of the folder `docs`, and one of each algorithm."""
    return sorted(_pages())


def title(topic: str) -> str:
    """The title of a page: its first line."""
    return _pages()[topic].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def text_of(topic: str) -> str:
    """A page as Markdown, whose links to other pages say how to read them, and which has no pictures."""
    pages = _pages()
    text = pages[topic].read_text(encoding="utf-8")
    text = re.sub(r"!\[([^\]]*)\]\([^)]+\)", r"(Picture: \1.)", text)
    page = rf"\[([^\]]*)\]\((?:\.\./|algorithms/)?({'|'.join(pages)})\.md[^)]*\)"
    text = re.sub(page, r"\1 (`trl-credit help \2`)", text)
    return re.sub(r"\[([^\]]*)\]\((?![a-z]+:)[^)\s]+\)", r"\1", text)


def _pages() -> dict[str, Path]:
    folder = packaged_folder("docs")
    found = [*folder.glob("*.md"), *folder.glob("algorithms/*.md")]
    return {path.stem: path for path in found if path.stem != "index"}


def _show(text: str) -> None:
    """Markdown as it is, or rendered in a terminal."""
    if not sys.stdout.isatty():
        print(text.rstrip())
        return
    console = Console()
    console.width = min(console.width, _WIDEST)
    console.print(Markdown(text, hyperlinks=False))
