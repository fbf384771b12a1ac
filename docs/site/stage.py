"""Copies `docs/` to `build/docs`, where the site is built from: `python docs/site/stage.py`, called by `build.sh`.

The notebooks become pages beside them, and KaTeX goes along, which sets the formulas. A link to a file that is no page
of the site becomes a link to the repository, or its words where the project has no address. Nothing else changes.
"""

import os
import re
import shutil
import tomllib
from pathlib import Path, PurePath

from notebook_pages import as_markdown


ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = ROOT / "examples" / "notebooks"
LINK = re.compile(r"(!?)(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def address() -> str | None:
    """Where the repository is: `Repository` of `[project.urls]`, or `None` while the project has no address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def place(file: Path) -> PurePath | None:
    """Where the site has a page, picture or notebook, relative to its root, and `None` for another file."""
    if file.is_relative_to(DOCS) and file.suffix in (".md", ".png"):
        return file.relative_to(DOCS)
    return PurePath("notebooks", f"{file.stem}.md") if file.parent == NOTEBOOKS and file.suffix == ".ipynb" else None


def rewritten(text: str, page: Path, repository: str | None) -> str:
    """The text of a page or notebook of the site. Raises `ValueError` for a link to a file that is not there."""
    home = place(page)
    if home is None:
        raise ValueError(f"{page} is no page of the site")

    def link(match: re.Match[str]) -> str:
        picture, words, target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        file = (page.parent / target).resolve()
        if not file.exists():
            raise ValueError(f"{page.relative_to(ROOT)} links to {target}, which is not there")
        if (goal := place(file)) is not None:
            there = PurePath(os.path.relpath(goal, home.parent)).as_posix()
            return f"{picture}{words}({there}{anchor or ''})"
        if repository is None:
            return words[1:-1]
        view = "raw" if picture else "tree" if file.is_dir() else "blob"
        place_there = f"{view}/main/{file.relative_to(ROOT).as_posix()}{anchor or ''}"
        return f"{picture}{words}({repository.rstrip('/')}/{place_there})"

    return LINK.sub(link, text)


def stage(target: Path) -> None:
    """Writes the pages, pictures and notebooks, rewritten, into the folder `target`."""
    shutil.rmtree(target, ignore_errors=True)
    repository = address()
    shutil.copytree(DOCS / "site" / "katex", target / "katex")
    for file in sorted(DOCS.rglob("*")):
        if file.suffix not in (".md", ".png"):
            continue
        copy = target / file.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(rewritten(file.read_text(encoding="utf-8"), file, repository), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)
    folder = target / "notebooks"
    folder.mkdir()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        # links are rewritten before outputs are added: an output is not ours to change
        page = as_markdown(notebook, folder, lambda text, own=notebook: rewritten(text, own, repository))
        (folder / f"{notebook.stem}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    stage(ROOT / "build" / "docs")
