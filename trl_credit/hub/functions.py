"""The custom functions of a run, by name, file and digest: for the card's table and for comments in the recipe."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..config import CreditConfig
from ..support.digests import FunctionSource, function_label, source_of_object
from ..support.functions import is_object_name, method_label, source_of


class CustomFunction(NamedTuple):
    """A function from outside of the package.

    Attributes:
        setting: The field that names it; "credit" for the method of a trainer's subclass.
        text: "half of mine.py, SHA-256 1a2b…", of the file as it was loaded (of the source of a function without file).
        doc: First line of its docstring.
        given_as: The field or class that was given it as an object, which no recipe can hold. Empty if it has a name.
    """

    setting: str
    text: str
    doc: str = ""
    given_as: str = ""


def custom_functions(args: CreditConfig, *, method: Callable | None = None) -> list[CustomFunction]:
    """The custom functions that compute credit; `method` is the `credit` of a trainer's subclass."""
    found = []
    if method is not None:
        label = method_label(method)
        source = source_of_object(method, label)
        found.append(CustomFunction("credit", _text(label, source), _first_line(method), "the trainer's class"))
    for setting, name in args.custom_functions().items():
        given_as = setting if is_object_name(name) else ""
        try:
            text, doc = _text(_name(name), source_of(name, what=setting)), _first_line(args.custom_function(setting))
        except ValueError:
            text, doc = f"{_name(name)}, whose file is gone", ""
        found.append(CustomFunction(setting, text, doc, given_as))
    return found


def function_comments(args: CreditConfig, *, method: Callable | None = None, rewards: Collection[Callable] = ()) -> str:
    """A YAML comment for each custom function, and one for each that the recipe cannot hold.

    `method` is the `credit` of a trainer's subclass. `rewards` are reward functions that no setting names.
    """
    lines = []
    unnamed = [CustomFunction("reward", function_label(reward), given_as="reward") for reward in rewards]
    for function in [*custom_functions(args, method=method), *unnamed]:
        lines.append(f"{function.setting}: {function.text}")
        if function.given_as:
            lines.append(
                f"{function.given_as} was given as an object, which no recipe can hold: put it into a file, and name "
                "it file.py:function"
            )
    # a name may hold line ends and characters that YAML does not take
    return "".join(f"# {''.join(c if c.isprintable() else '?' for c in line)}\n" for line in lines)


def _name(setting: str) -> str:
    """ "f" of "folder/file.py:f", of "package.module.f" and of "f@1a2b3c4d", which was given as an object."""
    last = setting.rpartition(":")[2].rpartition(".")[2]
    return last.rpartition("@")[0] if is_object_name(last) else last


def _text(name: str, source: FunctionSource) -> str:
    file = source.file.name if source.file is not None else "no file"
    return f"{name} of {file}, {source.checksum()}"


def _first_line(function: Callable) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return (inspect.getdoc(function) or "").partition("\n")[0]
