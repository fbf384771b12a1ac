"""A griffe extension: reads types and defaults as this package writes them.

In a docstring "name (`str`, *optional*, defaults to `"x"`)" becomes "name (str)", since the signature has the default.
A field that is declared with `knob(default, …)` has that default.
"""

import re
from typing import Any

import griffe


KNOBS = re.compile(r"(?:_?\w*knob|_[a-z]+)$")  # knob, and the shorthands for the knobs of one heading


def plain(docstring: str) -> str:
    """The docstring with plain types."""

    def entry(match: re.Match[str]) -> str:
        kind = re.sub(r",? \*optional\*.*|`|\[(?=`)|(?<=`)\]", "", match[2])
        return f"{match[1]} ({kind})" if kind else match[1]

    return re.sub(r"^( +\*{0,2}\w+) \(((?:[^()\n]|\([^()\n]*\))*)\)(?=:)", entry, docstring, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        value = attr.value
        if isinstance(value, griffe.ExprCall) and KNOBS.match(str(value.function)) and value.arguments:
            attr.value = value.arguments[0]
