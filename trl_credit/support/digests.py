"""Digests: whether a function, a value or a file is still the one that a run started with."""

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


logger = logging.getLogger(__name__)

_DIGESTS: WeakKeyDictionary[Callable, str] = WeakKeyDictionary()
_PLAIN = (bool, int, float, str, bytes, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_BLOCKS, _BLOCK_SIZE = 64, 1 << 16


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def json_text(value: Any) -> str:
    """JSON with sorted keys, equal in two processes for equal values. What JSON lacks is text in it."""
    return json.dumps(value, sort_keys=True, default=_json_value)


def short_digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a value's [`json_text`]."""
    return sha256(json_text(value).encode())[:16]


def seed_from(*parts: Any) -> int:
    """A seed of 32 bits that follows from some values of plain types, in every process alike."""
    return int(short_digest(parts)[:8], 16)


def sampled_digest(files: Iterable[Path]) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of files that may be too large to be read.

    It covers names, sizes and 64 blocks of 64 KiB spread evenly over each file; files up to 4 MiB entirely.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with open(file, "rb") as stream:
            for i in range(_BLOCKS):
                # blocks of a small file follow each other without gap or overlap
                stream.seek(max(i * _BLOCK_SIZE, i * (size - _BLOCK_SIZE) // (_BLOCKS - 1)))
                digest.update(stream.read(_BLOCK_SIZE))
    return digest.hexdigest()[:16]


def function_label(function: Callable) -> str:
    """`__name__` of a function, or of a callable object or a partial that has one; else of the function that a partial
    wraps, or of the object's class. It is the name of a reward in TRL's metrics."""
    while isinstance(function, functools.partial) and getattr(function, "__name__", None) is None:
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


class FunctionSource(NamedTuple):
    """Where a function comes from, as of when it was loaded.

    Attributes:
        file: The file that defines it, or `None` (a notebook, a prompt).
        digest: Hexadecimal SHA-256 of that file, or of the function's own source if there is no file, or `None` if
            there is no source. Values that a closure captured are not in it.
    """

    file: Path | None
    digest: str | None


def source_of_object(function: Callable) -> FunctionSource:
    """The source of a function or method that was given as an object, not by name."""
    defined = unbound(function)[0]
    source = _source(defined)
    path = None if source is None else Path(inspect.getsourcefile(defined) or "")
    if path is not None and path.is_file():
        return FunctionSource(path, sha256(path.read_bytes()))
    return FunctionSource(None, None if source is None else sha256(source.encode()))


def digest_of(function: Callable) -> str:
    """Hexadecimal SHA-256 of a function: its source, the arguments that a partial binds, and the plain values that a
    closure or a callable object holds. Its helper modules are in [`~trl_credit.support.modules.helper_modules`].

    The source is the whole file that defines the function. For this package it is only the name, since files change
    with every release. For the script that runs, which also holds the settings of the run, it is the source of the
    function and of everything in the script that the function refers to. A function without a source (typed at a
    prompt, written in C) is compared only by its name and its bound values, with a warning.

    The digest is computed once for each function, so values that a function changes while it runs have no effect.
    """
    with contextlib.suppress(TypeError):  # a callable object without a hash
        if function in _DIGESTS:
            return _DIGESTS[function]
    defined, bound = unbound(function)
    if (module := getattr(defined, "__module__", None) or "") == "__main__":
        sources = _script_sources(defined, set())
    elif module.partition(".")[0] == __package__.partition(".")[0]:
        sources = [module]
    else:
        sources = [digest] if (digest := source_of_object(function).digest) is not None else []
    if not sources:
        logger.warning("%s has no source here: a resume compares only its name and bound values", defined.__qualname__)
    digest = sha256("\n".join([defined.__qualname__, *map(_stable, bound), *sources]).encode())
    with contextlib.suppress(TypeError):  # without a hash, or no weak reference is possible
        _DIGESTS[function] = digest
    return digest


def unbound(function: Callable) -> tuple[Any, list[Any]]:
    """The function or class that has a source, and the values bound to it: arguments of partials, the attributes of a
    callable object, and what a closure holds."""
    bound: list[Any] = []
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        if isinstance(function, functools.partial):
            bound += [function.args, function.keywords]
            function = function.func
        else:
            function = function.__wrapped__
    if inspect.ismethod(function):
        bound.append(getattr(function.__self__, "__dict__", {}))
    elif not (inspect.isroutine(function) or inspect.isclass(function)):
        bound.append(getattr(function, "__dict__", {}))
        function = type(function)
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            bound.append(cell.cell_contents)
    return function, bound


def _script_sources(defined: Any, seen: set[int]) -> list[str]:
    """Source of a function or class of the running script, and of everything in the script that it refers to."""
    if id(defined) in seen or getattr(defined, "__module__", None) != "__main__":
        return []
    seen.add(id(defined))
    methods = [x for x in vars(defined).values() if inspect.isfunction(x)] if inspect.isclass(defined) else [defined]
    # in a notebook a class has no source, and its methods have
    sources = [source for x in dict.fromkeys([defined, *methods]) if (source := _source(x)) is not None]
    names = set().union(*(global_names(method.__code__) for method in methods)) if sources else set()
    script = vars(sys.modules["__main__"])
    used = {name: script[name] for name in sorted(names & script.keys()) if not inspect.ismodule(script[name])}
    sources += [f"{name} = {_stable(value)}" for name, value in used.items() if not callable(value)]
    for value in filter(callable, [*used.values(), *unbound(defined)[1], *getattr(defined, "__bases__", ())]):
        sources += _script_sources(unbound(value)[0], seen)
    return sources


def global_names(code: CodeType) -> set[str]:
    """Global names that compiled code refers to, including those of functions inside it."""
    return set(code.co_names).union(*(global_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _source(defined: Any) -> str | None:
    try:
        return inspect.getsource(defined)
    except (OSError, TypeError):  # typed at a prompt, or written in C
        return None


def _json_value(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    # an array or a decoded image has bytes
    return sha256(value.tobytes()) if hasattr(value, "tobytes") else _ADDRESS.sub("", str(value))


def _stable(value: Any) -> str:
    """Text that is equal in two processes for equal plain values. Functions appear by name, other objects by type."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{_stable(k)}: {_stable(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_stable, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_stable, value))) + "}"
    if isinstance(value, _PLAIN):
        return repr(value)
    return function_label(value) if callable(value) else type(value).__name__
