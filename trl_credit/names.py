"""Functions by name: `package.module.function`, `file.py:function`, or one that was given as an object."""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import marshal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


# functions that were given as objects and that no import finds again, by the name that stands for them
_GIVEN: dict[str, Callable] = {}
GIVEN_MARK = "@"  # in such a name, before the digest of the source


@dataclass(frozen=True)
class FunctionSource:
    """Where a function comes from, as far as that can be told.

    Attributes:
        name: As a configuration names it.
        file: Of its source, or `None` (a notebook, a prompt).
        digest: Hexadecimal SHA-256 of that file, or of the function's own source where there is no file. Values that
            a closure captured are not in it.
    """

    name: str
    file: Path | None
    digest: str


def is_own_function(value: object) -> bool:
    """Whether a setting names (or is) a function from outside of the package, and not one of the built-in choices."""
    return callable(value) or (isinstance(value, str) and any(mark in value for mark in (".", ":", GIVEN_MARK)))


def resolve_function(name: str, *, what: str, known: Iterable[str]) -> Callable:
    """The function that `name` points to: dotted path (`package.module.function`) or `file.py:function`.

    Args:
        name (`str`):
            The file, or the module, is executed once per process. Names from [`name_of`] are found as well.
        what (`str`):
            What the function is, for the messages: "reward", "step_splitter".
        known (iterable of `str`):
            Names that would have been accepted as well, for the messages.

    Raises:
        ValueError: there is no such function, or the file that should hold it fails.
    """
    if GIVEN_MARK in name:
        if name not in _GIVEN:
            raise ValueError(
                f"{what} {name!r} was given as an object (a lambda, or a function of a notebook) to another process, "
                f"and is not to be found here: give it again, {what}=…, or put it into a file and name it "
                "file.py:function."
            )
        return _GIVEN[name]
    if ":" in name:
        path, _, attribute = name.rpartition(":")
        if not Path(path).is_file() or Path(path).suffix != ".py":
            raise ValueError(f"{what} {name!r}: there is no file {path!r} that ends in .py")
        module = _load_file(str(Path(path).resolve()), f"{what} {name!r}")
    elif "." in name:
        module_name, _, attribute = name.rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(f"{what} {name!r}: {error}") from error
    else:
        choices = ", ".join(known)
        raise ValueError(
            f"unknown {what} {name!r}: choose one of {choices}, or give package.module.function or file.py:function"
        )
    if not callable(vars(module).get(attribute)):
        raise ValueError(f"{what} {name!r}: {attribute!r} is not a function there")
    return vars(module)[attribute]


def name_of(function: Callable) -> str:
    """The name that stands for a function that is given as an object.

    `package.module.function` where an import finds the same object again, in any process; otherwise (a lambda, a
    function of a notebook, a partial) the function is kept here, for this process, under its own name and a digest.
    """
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in (None, "__main__") and vars(sys.modules.get(module, object)).get(qualified) is function:
        return f"{module}.{qualified}"
    digest = hashlib.sha256(_source_text(function).encode()).hexdigest()
    base = f"{function_label(function)}{GIVEN_MARK}{digest[:8]}"
    name, number = base, 1
    while _GIVEN.get(name, function) is not function:  # one source, two closures
        number += 1
        name = f"{base}-{number}"
    _GIVEN[name] = function
    return name


def function_label(function: Callable) -> str:
    """`__name__` of a function, of what a partial wraps, or of the class of a callable object."""
    if isinstance(function, functools.partial):
        return function_label(function.func)
    return function.__name__ if inspect.isroutine(function) or inspect.isclass(function) else type(function).__name__


def source_of(name: str, *, what: str) -> FunctionSource:
    """File and digest of the function that a setting names. Raises what [`resolve_function`] does."""
    function = resolve_function(name, what=what, known=())
    if GIVEN_MARK not in name:
        path = Path(name.rpartition(":")[0]) if ":" in name else _file_of(function)
        if path is not None and path.is_file():
            return FunctionSource(name, path, hashlib.sha256(path.read_bytes()).hexdigest())
    path = _file_of(function)
    return FunctionSource(name, path, hashlib.sha256(_source_text(function).encode()).hexdigest())


def _file_of(function: Callable) -> Path | None:
    try:
        path = inspect.getsourcefile(_defined(function))
    except TypeError:  # written in C
        return None
    return Path(path) if path is not None and Path(path).is_file() else None


def _defined(function: Callable) -> Any:
    """What has a source: the function under partials and wrappers, or the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _source_text(function: Callable) -> str:
    bound = repr((function.args, function.keywords)) if isinstance(function, functools.partial) else ""
    defined = _defined(function)
    try:
        return inspect.getsource(defined) + bound
    except (OSError, TypeError):  # typed at a prompt, or written in C
        code = getattr(defined, "__code__", None)
        text = repr(defined) if code is None else marshal.dumps(code.replace(co_filename="", co_firstlineno=1)).hex()
        return text + bound


@functools.cache
def _load_file(path: str, asked: str) -> ModuleType:
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's own file does
        del sys.modules[name]
        raise ValueError(f"{asked}: {Path(path).name} raised {type(error).__name__}: {error}") from error
    return module
