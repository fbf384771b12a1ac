"""Helper modules of a function: the user's own modules that it needs besides its file."""

import ast
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .digests import script_sources, sha256, unbound


# also where they are installed from a clone: their versions are not a run's identity
_LIBRARIES = frozenset("accelerate datasets deepspeed peft torch transformers trl vllm".split())
_INSTALLED = {"site-packages", "dist-packages"}


def helper_modules(function: Callable) -> dict[str, str]:
    """The user's modules that a function's module imports, and those that these import: name → SHA-256 of the file.

    Imports are read from the source, so those inside functions count. Modules are found without being imported. Left
    out are the module of the function itself, the standard library, what lies in site-packages, and this package. Of
    the script that runs, only what the function refers to counts. Modules that are imported by a computed name are
    found if their functions or classes are global names of a module.
    """
    defined, bound = unbound(function)
    own = getattr(defined, "__module__", None) or ""
    names = _modules_of(bound)
    if own == "__main__":
        elsewhere: list[Any] = []
        for source in script_sources(defined, set(), elsewhere):
            names += _imported(textwrap.dedent(source), getattr(sys.modules[own], "__package__", None) or "")
        names += [_module_of(value) for value in elsewhere]
    else:
        names.append(own)
    found = _followed(name for name in names if name)
    found.pop(own, None)
    return {name: sha256(path.read_bytes()) for name, path in found.items()}


def _followed(names: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    seen: set[str] = {"", "__main__"}
    to_do = list(names)
    while to_do:
        name = to_do.pop()
        if name in seen:
            continue
        seen.add(name)
        to_do.append(name.rpartition(".")[0])  # importing a module runs its packages
        path = _located(name)
        if path is None or not _is_own(name, path):
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        to_do += _imported(path.read_bytes(), package)
        loaded = vars(sys.modules[name]).values() if name in sys.modules else ()
        to_do += [_module_of(value) for value in loaded if isinstance(value, (ModuleType, FunctionType, type))]
    return found


def _is_own(name: str, path: Path) -> bool:
    top = name.partition(".")[0]
    is_known = top in sys.stdlib_module_names or top in _LIBRARIES or top == __package__.partition(".")[0]
    return not is_known and path.is_file() and not _INSTALLED & set(path.parts)


def _module_of(value: Any) -> str:
    """A module, that of a function or class, or that of an object's class."""
    if isinstance(value, ModuleType):
        return value.__name__
    name = (value if isinstance(value, (FunctionType, type)) else type(value)).__module__
    return name if isinstance(name, str) else ""


def _modules_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    return [x for one in value for x in _modules_of(one)] if isinstance(value, (list, tuple)) else [_module_of(value)]


def _located(name: str) -> Path | None:
    """The file of a module. Imports nothing."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if isinstance(file, str) else None
    stem = name.replace(".", "/")
    files = (Path(folder, file) for folder in sys.path for file in (f"{stem}/__init__.py", f"{stem}.py"))
    return next((file for file in files if file.is_file()), None)


def _imported(source: str | bytes, package: str) -> Iterator[str]:
    """Names of modules that a source imports, and of what it imports from them, which may be modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
