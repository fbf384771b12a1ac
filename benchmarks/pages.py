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


# algorithm → its page and heading in docs, if it has no page of its own in docs/algorithms; in the order of the page
SHARED_PAGES = {
    "dr_grpo": ("algorithms/dr_grpo.md", "dr-grpo"),
    "opo": ("algorithms/dr_grpo.md", "opo"),
    "s_trace": ("algorithms/s_trace.md", "s-trace"),
    "p_trace": ("algorithms/s_trace.md", "p-trace"),
    "gspo": ("algorithms/gspo.md", "gspo"),
    "gspo_token": ("algorithms/gspo.md", "gspo-token"),
    "clip_cov": ("algorithms/clip_cov.md", "clip-cov"),
    "kl_cov": ("algorithms/clip_cov.md", "kl-cov"),
    "spo_chain": ("segments.md", "spo-chain"),
    "spo_tree": ("segments.md", "spo-tree"),
    "vine_ppo": ("segments.md", "vineppo"),
    "opd": ("teacher.md", "opd"),
    "rlsd": ("teacher.md", "rlsd"),
    "sdpo": ("teacher.md", "sdpo"),
}


def page_of(algorithm: str) -> tuple[Path, str]:
    """The page of an algorithm, and the anchor of its heading there, "" if the page is its own."""
    name, anchor = SHARED_PAGES.get(algorithm, (f"algorithms/{algorithm}.md", ""))
    return ROOT / "docs" / name, anchor


def table(head: list[str], rows: list[list[str]], *, texts: int = 1) -> str:
    """Markdown; the first `texts` columns are text, the others are numbers."""
    lines = [head, ["---"] * texts + ["--:"] * (len(head) - texts), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables made anew."""
    return _BETWEEN.sub(lambda match: match[1] + tables[match[2]] if match[2] in tables else match[0], page)


def places(page: str) -> list[str]:
    """The names of the tables for which a page has a place."""
    return [name for _, name in _BETWEEN.findall(page)]


def write(path: Path, tables: Mapping[str, str]) -> None:
    """Puts the tables into the page.

    Raises:
        ValueError: the page has no place, or several, for one of them.
    """
    page = path.read_text(encoding="utf-8")
    if wrong := [name for name in tables if places(page).count(name) != 1]:
        raise ValueError(f"{path.name} must have one place for each of: {', '.join(wrong)}")
    write_atomically(path, filled(page, tables))
