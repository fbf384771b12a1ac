"""Functions by name: `package.module.function`, `file.py:function`, or a name for a function given as an object."""

import functools
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from types import ModuleType

from .digests import FunctionSource, digest_of, function_label, sha256, source_of_object
from .errors import one_line


_PACKAGE = Path(__file__).parents[1]
_OBJECT_NAME = re.compile(r"@[0-9a-f]{8}(-\d+)?$")
# what a name meant when it was last looked up, also the names of functions that were given as objects
_RESOLVED: dict[str, tuple[Callable, FunctionSource]] = {}
_FILES: dict[Path, tuple[str, ModuleType]] = {}  # digest of a file when it was executed, and the module
_NAMES_ALONE = ContextVar("names_alone", default=False)


@contextmanager
def names_alone() -> Iterator[None]:
    """Context manager in which configurations keep the names of functions without importing them: what only reads
    settings must not run the code that a stranger's recipe names."""
    token = _NAMES_ALONE.set(True)
    try:
        yield
    finally:
        _NAMES_ALONE.reset(token)


def imports_functions() -> bool:
    """Whether a configuration looks up its functions when it is built: always, except in [`names_alone`]."""
    return not _NAMES_ALONE.get()


class FunctionRaised(RuntimeError):
    """A custom function raised an error or called `sys.exit`. The message is one line with its name and the place."""


def is_object_name(name: str) -> bool:
    """Whether a name stands for a function that was given as an object."""
    return _OBJECT_NAME.search(name) is not None


def short_name(name: str) -> str:
    """A name without folder and digest: "mine.py:f" of "/folder/mine.py:f", "f" of "f@1a2b3c4d"."""
    path, colon, function = name.rpartition(":")
    return f"{PurePath(path).name}{colon}{_OBJECT_NAME.sub('', function)}"


def is_custom_function(value: object) -> bool:
    """Whether a setting is a function, or the name of one, from outside the package, and not a built-in choice or a
    text with columns in braces."""
    is_name = isinstance(value, str) and "{" not in value
    return callable(value) or (is_name and (any(c in value for c in ".:") or is_object_name(value)))


def resolve_function(name: str, *, what: str, known: Iterable[str], reload: bool = True) -> Callable:
    """The function that `name` points to: dotted path (`package.module.function`) or `file.py:function`.

    Args:
        name (`str`):
            A file is executed once per process, and again if it has changed; a module once. Names from [`name_of`] are
            found as well.
        what (`str`):
            What the function is, for the messages: "reward", "step_splitter".
        known (iterable of `str`):
            Built-in names, for the messages.
        reload (`bool`, *optional*, defaults to `True`):
            Whether to look at the file again. `False` returns the function that the name meant before, so that a run's
            functions stay the same whatever happens to files and to the current folder.

    Raises:
        ValueError: there is no such function, or the file that should hold it fails.
    """
    if not isinstance(name, str):
        raise ValueError(f"{what}={name!r}: give a function when the configuration is built, {what}=…, not afterwards")
    if name not in _RESOLVED or (reload and not is_object_name(name)):
        function, path = _find(name, f"{what} {name!r}", what, known)
        source = source_of_object(function) if path is None else FunctionSource(path, _FILES[path][0])
        _RESOLVED[name] = function, source
    function = _RESOLVED[name][0]
    if inspect.isclass(function) and not (what == "credit" and callable(getattr(function, "credit", None))):
        kind = "a class without a method credit" if what == "credit" else "a class"
        raise ValueError(f"{what} {name!r} is {kind}: name a function, or an instance of the class")
    return function


def known_function(name: str) -> Callable | None:
    """What [`resolve_function`] found for a name the last time, or `None`."""
    return _RESOLVED[name][0] if name in _RESOLVED else None


def _find(name: str, label: str, what: str, known: Iterable[str]) -> tuple[Callable, Path | None]:
    """The function, and the file if `name` names one. Messages begin with `label`."""
    if is_object_name(name):
        fix = f"give it again, {what}=…, or put it into a file and name it file.py:function"
        raise ValueError(f"{label} was given as an object to another process and does not exist here: {fix}.")
    place, separator, attribute = name.rpartition(":" if ":" in name else ".")
    if not separator:
        choices = ", ".join([*known, "package.module.function", "file.py:function"])
        raise ValueError(f"unknown {label}: choose one of {choices}")
    if name.endswith(".py"):
        raise ValueError(f"{label} is a file: name the function in it too, as {name}:function")
    path = Path(place).resolve() if separator == ":" else None
    if path is not None and not (path.is_file() and path.suffix == ".py"):
        raise ValueError(f"{label}: there is no file {place!r} that ends in .py")
    try:
        module = importlib.import_module(place) if path is None else _execute(path)
    except (Exception, SystemExit) as error:  # the user's module may do anything
        raise ValueError(f"{label}: {place} {_raised(error)}") from error
    if not callable(vars(module).get(attribute)):
        raise ValueError(f"{label}: {attribute!r} is not a function there")
    return vars(module)[attribute], path


def _execute(path: Path) -> ModuleType:
    source = path.read_bytes()
    digest = sha256(source)
    if path in _FILES and _FILES[path][0] == digest:
        return _FILES[path][1]
    name = f"{path.stem}_{sha256(f'{path} {digest}'.encode())[:8]}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        # what was read here: Python's own loader may take a compiled file of an earlier text, and writes one beside it
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    _FILES[path] = digest, module
    return module


def name_of(function: Callable) -> str:
    """The name by which a configuration refers to a function that was given as an object.

    `package.module.function` or `file.py:function` if another process finds the same function by that name. Otherwise
    (a lambda, a function of a notebook, a partial) the function is kept in this process, under its own name and a
    digest.
    """
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in (None, "__main__") and vars(sys.modules.get(module, object)).get(qualified) is function:
        path = next((path for path, (_, loaded) in _FILES.items() if loaded.__name__ == module), None)
        return f"{module}.{qualified}" if path is None else f"{path}:{qualified}"
    base = f"{function_label(function)}@{digest_of(function)[:8]}"
    names = (base if number == 1 else f"{base}-{number}" for number in itertools.count(1))
    # two functions may have one digest; bound methods are equal
    name = next(name for name in names if name not in _RESOLVED or _RESOLVED[name][0] == function)
    _RESOLVED[name] = function, source_of_object(function)
    return name


@contextmanager
def errors_named(function: Callable, label: str, *, kept: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns an error of a custom function into one line.

    Raises:
        FunctionRaised: the code inside raised an error or called `sys.exit`; the message begins with `label`. Errors of
            the types `kept`, and torch's for a device without memory, are raised as they are: callers react to them.
    """
    try:
        yield
    except (FunctionRaised, *kept):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's; this module does not import torch
            raise
        raise FunctionRaised(f"{label} {_raised(error)}{place_of(error, function)}.") from error


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}): remove that call"
    return f"raised {type(error).__name__}: {one_line(error)}"


def place_of(error: BaseException, function: Callable) -> str:
    """ ", in line 3 of mine.py": the last frame of an error in the function's own file, else the last one outside of
    this package; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file]
    outside = own or [frame for frame in frames if not Path(frame.filename).is_relative_to(_PACKAGE)]
    return f", in line {outside[-1].lineno} of {Path(outside[-1].filename).name}" if outside else ""


def source_of(name: str, *, what: str) -> FunctionSource:
    """Where the function that a setting names was loaded from. Raises what [`resolve_function`] does."""
    resolve_function(name, what=what, known=(), reload=False)
    return _RESOLVED[name][1]


def unique_names(names: Sequence[str]) -> list[str]:
    """Makes names different: a second `name` becomes `name_2`, or the next one that is free."""
    unique: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        unique.append(name if name not in unique else next(x for x in others if x not in {*unique, *names}))
    return unique


def declared(function: Callable, name: str) -> bool | None:
    """The attribute `name` of a function, or of the one that a partial or a decorator wraps; `None` if none has it."""
    while function is not None and getattr(function, name, None) is None:
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
    return getattr(function, name, None)
