"""Writes a notebook as a Markdown page of the site, with its stored outputs."""

import base64
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path


FRAME = '<iframe src="../{name}" title="Credit per token" sandbox="allow-scripts" loading="lazy" {size}></iframe>'
SIZE = 'width="100%" height="760" style="border:0"'


class _Frame(HTMLParser):
    """The page inside an `<iframe srcdoc=…>`."""

    page: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "iframe":
            self.page = dict(attributes).get("srcdoc")


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _shown(output: dict, file: Path) -> str:
    """An output as Markdown. A picture or a page of the viewer goes to a file whose name begins as `file`'s does."""
    if output["output_type"] == "stream":
        return _fenced("".join(output["text"]), "text")
    if output["output_type"] == "error":
        raise ValueError(f"{file.name}: a cell has failed: {output['ename']}: {output['evalue']}")
    data = {kind: value if isinstance(value, str) else "".join(value) for kind, value in output["data"].items()}
    if "image/png" in data:
        picture = file.with_name(f"{file.name}.png")
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![plot of this cell]({picture.name})"
    if "text/html" in data:
        frame = _Frame()
        frame.feed(data["text/html"])
        if frame.page is None:
            raise ValueError(f"{file.name}: an HTML output that is no page of the viewer")
        page = file.with_name(f"{file.name}.html")
        page.write_text(frame.page, encoding="utf-8")
        return FRAME.format(name=page.name, size=SIZE)
    return data["text/markdown"] if "text/markdown" in data else _fenced(data["text/plain"], "text")


def as_markdown(notebook: Path, folder: Path, rewrite: Callable[[str], str]) -> str:
    """The page of a notebook, its text cells passed through `rewrite`. Pictures and viewer pages go to `folder`.

    Raises:
        ValueError: an output is an error, or HTML that is no page of the viewer.
    """
    parts, shown = [], 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(rewrite(source) if cell["cell_type"] == "markdown" else _fenced(source, "python"))
        for output in cell.get("outputs", []):
            shown += 1
            parts.append(_shown(output, folder / f"{notebook.stem}_{shown}"))
    return "\n\n".join(parts) + "\n"
