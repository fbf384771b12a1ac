"""Puts untrusted text into Markdown."""

import html
import re


_MARKDOWN = re.compile(r"([\\`*_\[\]#|~$!])")


def escape(text: str) -> str:
    """A text on one line in which nothing is HTML or Markdown."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def fenced(text: str, language: str) -> str:
    """A code block that `text` cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def without_html(text: str) -> str:
    """Markdown with its headings at the third level, without HTML and pictures."""
    text = re.sub(r"^#+", "###", text, flags=re.MULTILINE)
    replaced = {"<": "&lt;", r"\<": "&lt;", "![": r"\!["}
    # a backslash stays with what it escapes: a second backslash would undo the first
    return re.sub(r"\\.|<|!\[", lambda found: replaced.get(found[0], found[0]), text)
