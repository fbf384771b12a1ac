"""Pages whose tables are made from raw results: a table stands between `<!-- table: NAME -->` and `<!-- /table -->`."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trl_credit.presets import Preset
from trl_credit.support.files import write_atomically


ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
_BETWEEN = re.compile(r"(<!-- table: (\w+) -->\n).*?(?=<!-- /table -->)", re.DOTALL)
_TEXTS = re.compile(r".+?\n\n(.+?)\n\nUse it when: (.+)\nCosts: (.+)", re.DOTALL)


class Texts(NamedTuple):
    """What the docstring of a preset's module says: the idea, when to use the algorithm, and what it costs."""

    idea: str
    use_when: str
    cost: str


def texts_of(preset: Preset) -> Texts:
    """The texts of an algorithm, each on one line.

    Raises:
        ValueError: the docstring does not have the form that `trl_credit/presets/preset.py` tells.
    """
    module = inspect.getmodule(preset.config)
    if not (parts := _TEXTS.fullmatch(inspect.getdoc(module) or "")):
        raise ValueError(f"{module.__name__}: its docstring must have an idea, 'Use it when:' and 'Costs:'")
    return Texts(*(" ".join(part.split()) for part in parts.groups()))


def table(head: list[str], rows: list[list[str]], *, texts: int = 1) -> str:
    """Markdown; the first `texts` columns are text, the others are numbers."""
    lines = [head, ["---"] * texts + ["--:"] * (len(head) - texts), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with every table made anew. Raises `KeyError` if the page names one that does not exist."""
    return _BETWEEN.sub(lambda match: match[1] + tables[match[2]], page)


def write(path: Path, tables: Mapping[str, str]) -> None:
    """Puts the tables into the page.

    Raises:
        ValueError: the page has no place for a table, or names one that does not exist.
    """
    page = path.read_text(encoding="utf-8")
    places = [name for _, name in _BETWEEN.findall(page)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"{path.name} must have a place for each of {', '.join(tables)}; it has {', '.join(places)}")
    write_atomically(path, filled(page, tables))
