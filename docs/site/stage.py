"""Copies `docs/` to `build/docs`, where the site is built from: `python docs/site/stage.py`, called by `build.sh`.

A link of a page to a file outside of `docs/` becomes a link to the repository. That is the only change.
"""

import re
import shutil
import tomllib
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def address() -> str:
    """Where the repository is: `Repository` of `[project.urls]`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"].rstrip("/")


def rewritten(text: str, page: Path, repository: str) -> str:
    """The text of a page of `docs/`. Raises `ValueError` for a link to a file that is not there."""

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        file = (page.parent / target).resolve()
        if file.is_relative_to(DOCS) and file.suffix in (".md", ".png"):
            return found[0]  # the builder checks these
        if not file.exists():
            raise ValueError(f"{page.relative_to(ROOT)} links to {target}, which is not there")
        view = "raw" if picture else "tree" if file.is_dir() else "blob"
        return f"{picture}{words}({repository}/{view}/main/{file.relative_to(ROOT).as_posix()}{anchor or ''})"

    return LINK.sub(link, text)


def stage(target: Path) -> None:
    """Writes the pages and pictures, rewritten, into the folder `target`."""
    shutil.rmtree(target, ignore_errors=True)
    repository = address()
    for file in sorted(DOCS.rglob("*")):
        if file.suffix not in (".md", ".png"):
            continue
        copy = target / file.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(rewritten(file.read_text(encoding="utf-8"), file, repository), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    stage(ROOT / "build" / "docs")
