"""A Markdown extension: "[`CreditConfig`]" in a docstring becomes a link if the site documents it, and code if not."""

import re
from pathlib import Path

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor


API = Path(__file__).resolve().parents[1] / "api.md"
REFERENCE = re.compile(r"\[`~?([\w.]+)`\](?![\[(])")


def documented() -> dict[str, str]:
    """The last part of each name on the API page, with the whole name."""
    names = re.findall(r"^::: (\S+)", API.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.rpartition(".")[2]: name for name in names}


class CrossReferences(Preprocessor):
    def __init__(self, md: Markdown) -> None:
        super().__init__(md)
        self.names = documented()

    def run(self, lines: list[str]) -> list[str]:
        return [REFERENCE.sub(self._link, line) for line in lines]

    def _link(self, match: re.Match[str]) -> str:
        last = match[1].rpartition(".")[2]
        return f"[`{last}`][{self.names[last]}]" if last in self.names else f"`{last}`"


class CrossReferencesExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(CrossReferences(md), "crossrefs", 20)  # after fenced code is set aside


def makeExtension(**options: object) -> CrossReferencesExtension:
    return CrossReferencesExtension(**options)
