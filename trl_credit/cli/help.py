"""
Prints a page of the documentation.

  trl-credit help              lists the pages
  trl-credit help TOPIC        prints a page
  trl-credit help COMMAND      prints `trl-credit COMMAND --help`, if no page has that name
"""

# imports no torch

import re
from importlib import import_module
from pathlib import Path

from .. import STEMS
from ..settings.parser import OneLineParser
from ..support.errors import choose, did_you_mean
from ..support.packaged import packaged_folder


_PLACE = re.compile(r"<!-- table: (\w+) -->")  # of the section of an algorithm, or of another table


def main(argv: list[str]) -> None:
    """Runs the command. Raises `ValueError` for a topic that there is not."""
    from . import COMMANDS

    parser = OneLineParser(prog="trl-credit help", description=__doc__, usage="%(prog)s …")
    parser.add_argument("topic", nargs="?", help="name of a page")
    topic, known = parser.parse_args(argv).topic, pages()
    if topic is None:
        titles = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in sorted(known.items())}
        rows = [f"  {name:<22}{title.removeprefix('# ')}" for name, title in titles.items()]
        print("\n".join(["trl-credit help TOPIC prints a page:\n", *rows]))
    elif topic in known:
        print(text_of(topic).rstrip())
    elif topic in COMMANDS:
        import_module(f".{topic}", __package__).main(["--help"])
    else:
        meant = did_you_mean(topic, [*known, *COMMANDS]) or choose(topic, sorted(known))
        raise ValueError(f"there is no page {topic!r}{meant}")


def pages() -> dict[str, Path]:
    """The pages by name: those of the folder `docs`, and one for each algorithm, which may have several."""
    folder = packaged_folder("docs")
    paths = [*folder.glob("*.md"), *folder.glob("algorithms/*.md")]
    known = {path.stem: path for path in paths if path.stem != "index"}
    sections = {name: path for path in known.values() for name in _PLACE.findall(path.read_text(encoding="utf-8"))}
    return {name: path for name, path in sections.items() if name in STEMS} | known


def text_of(topic: str) -> str:
    """A page as Markdown, whose links to other pages say how to read them, and which has no pictures."""
    known = pages()
    text = known[topic].read_text(encoding="utf-8")
    text = re.sub(r"!\[([^\]]*)\]\([^)]+\)|<!-- .* -->\n", "", text)
    page = rf"\[([^\]]*)\]\((?:\.\./|algorithms/)?({'|'.join(known)})\.md[^)]*\)"
    text = re.sub(page, r"\1 (`trl-credit help \2`)", text)
    return re.sub(r"\[([^\]]*)\]\((?![a-z]+:)[^)\s]+\)", r"\1", text)
