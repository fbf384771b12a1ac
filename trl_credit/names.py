"""Functions by name: `package.module.function`, `file.py:function`, or one that was given as an object."""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import marshal
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary


# a name that stands for an object: the function's own, and a digest of its source
_OBJECT = re.compile(r"@[0-9a-f]{8}(-\d+)?$")


@dataclass(frozen=True)
class FunctionSource:
    """Where a function comes from, as it was when it was loaded.

    Attributes:
        name: As a configuration names it.
        file: Of its source, or `None` (a notebook, a prompt).
        digest: Hexadecimal SHA-256 of that file, or of the function's own source where there is no file. Values that
            a closure captured are not in it.
    """

    name: str
    file: Path | None
    digest: str


# what names have been found to mean in this process, and functions that were given as objects
_FOUND: dict[str, tuple[Callable, FunctionSource]] = {}
_GIVEN: dict[str, Callable] = {}
_FILES: dict[str, tuple[str, ModuleType]] = {}  # path → digest of the text that was executed, and the module


def is_object_name(name: str) -> bool:
    """Whether a name stands for a function that was given as an object."""
    return _OBJECT.search(name) is not None


def is_own_function(value: object) -> bool:
    """Whether a setting names (or is) a function from outside of the package, and not one of the built-in choices."""
    return callable(value) or (isinstance(value, str) and (any(c in value for c in ".:") or is_object_name(value)))


def resolve_function(name: str, *, what: str, known: Iterable[str], anew: bool = True) -> Callable:
    """The function that `name` points to: dotted path (`package.module.function`) or `file.py:function`.

    Args:
        name (`str`):
            A file is executed once per process, and again if it has changed; a module once. Names from [`name_of`] are
            found as well.
        what (`str`):
            What the function is, for the messages: "reward", "step_splitter".
        known (iterable of `str`):
            Names that would have been accepted as well, for the messages.
        anew (`bool`, *optional*, defaults to `True`):
            Whether to look at the file. `False` takes what the name has been found to mean, if it was looked up before:
            a run's functions stay what they are, whatever becomes of files and of the current folder.

    Raises:
        ValueError: there is no such function, or the file that should hold it fails.
    """
    if not isinstance(name, str):
        raise ValueError(f"{what}={name!r}: give a function when the configuration is built, {what}=…, not afterwards")
    if not anew and name in _FOUND:
        return _FOUND[name][0]
    function, path = _look_up(name, what, known)
    if path is not None and (loaded := _FILES.get(str(path))) is not None:
        digest = loaded[0]
    else:
        path = _file_of(function)
        digest = _sha256(path.read_bytes() if path is not None else _source_text(function).encode())
    _FOUND[name] = function, FunctionSource(name, path, digest)
    return function


def _look_up(name: str, what: str, known: Iterable[str]) -> tuple[Callable, Path | None]:
    """The function, and the file if it was loaded as one."""
    if is_object_name(name) and ":" not in name:
        if name not in _GIVEN:
            raise ValueError(
                f"{what} {name!r} was given as an object (a lambda, or a function of a notebook) to another process, "
                f"and is not to be found here: give it again, {what}=…, or put it into a file and name it "
                "file.py:function."
            )
        return _GIVEN[name], None
    path = None
    if name.endswith(".py"):
        raise ValueError(f"{what} {name!r} is a file: name the function in it too, as {name}:function")
    if ":" in name:
        file, _, attribute = name.rpartition(":")
        path = Path(file)
        if not path.is_file() or path.suffix != ".py":
            raise ValueError(f"{what} {name!r}: there is no file {file!r} that ends in .py")
        path = path.resolve()
        module = _load_file(path, f"{what} {name!r}")
    elif "." in name:
        module_name, _, attribute = name.rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(f"{what} {name!r}: {error}") from error
        except (Exception, SystemExit) as error:  # whatever the user's own module does
            raise ValueError(f"{what} {name!r}: importing {module_name} {_raised(error)}") from error
    else:
        choices = ", ".join(known)
        raise ValueError(
            f"unknown {what} {name!r}: choose one of {choices}, or give package.module.function or file.py:function"
        )
    if not callable(vars(module).get(attribute)):
        raise ValueError(f"{what} {name!r}: {attribute!r} is not a function there")
    return vars(module)[attribute], path


def name_of(function: Callable) -> str:
    """The name that stands for a function that is given as an object.

    `package.module.function` or `file.py:function` where another process finds the same one by it; otherwise (a lambda,
    a function of a notebook, a partial) the function is kept here, for this process, under its own name and a digest.
    """
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in (None, "__main__") and vars(sys.modules.get(module, object)).get(qualified) is function:
        path = next((path for path, (_, loaded) in _FILES.items() if loaded.__name__ == module), None)
        return f"{module}.{qualified}" if path is None else f"{path}:{qualified}"
    base = f"{function_label(function)}@{_sha256(_source_text(function).encode())[:8]}"
    name, number = base, 1
    while _GIVEN.get(name, function) != function:  # two closures of one source; bound methods are equal
        number += 1
        name = f"{base}-{number}"
    _GIVEN[name] = function
    return name


def function_label(function: Callable) -> str:
    """`__name__` of a function, of what a partial wraps, or of the class of a callable object."""
    if isinstance(function, functools.partial):
        return function_label(function.func)
    return function.__name__ if inspect.isroutine(function) or inspect.isclass(function) else type(function).__name__


def method_label(method: Callable) -> str:
    """ "Class.method"."""
    return method.__qualname__.rpartition("<locals>.")[2]


def declared(function: Callable, name: str) -> bool | None:
    """What a function says of itself by `function.<name> = …`, or what a partial wraps does; `None` if neither does."""
    while isinstance(function, functools.partial) and getattr(function, name, None) is None:
        function = function.func
    return getattr(function, name, None)


def source_of(name: str, *, what: str) -> FunctionSource:
    """Where the function that a setting names was loaded from. Raises what [`resolve_function`] does."""
    resolve_function(name, what=what, known=(), anew=False)
    return _FOUND[name][1]


def source_of_object(function: Callable, name: str) -> FunctionSource:
    """The same of a function, or a method, that no setting names."""
    path = _file_of(function)
    return FunctionSource(name, path, _sha256(path.read_bytes() if path else _source_text(function).encode()))


def digest_of(function: Callable) -> str:
    """Hexadecimal SHA-256 of all that a function's results may depend on and that can be seen from outside: its name
    and file (its own source where there is none), the arguments that a partial binds, and plain values that a closure
    or a callable object holds.

    Of a function of this package the file is left out, which changes with every release. Of a script that runs, which
    has the settings of the run as well, it is the source of the function and of what it refers to there. What it was
    when it was first asked for: what a function notes while it runs makes it no other.
    """
    try:
        known = _DIGESTS.get(function)
    except TypeError:  # without a hash
        return _digest(function)
    if known is None:
        known = _digest(function)
        with contextlib.suppress(TypeError):  # what cannot be referred to weakly
            _DIGESTS[function] = known
    return known


_DIGESTS: WeakKeyDictionary[Callable, str] = WeakKeyDictionary()


def _digest(function: Callable) -> str:
    defined = _defined(function)
    parts = [_held(function), *(_stable(value) for value in _closure(defined)), defined.__qualname__]
    module = getattr(defined, "__module__", None) or ""
    if module == "__main__":
        parts += _sources(function, {})
    elif module.partition(".")[0] != __package__:
        parts.append(source_of_object(function, function_label(function)).digest)
    else:
        parts.append(module)
    return _sha256("\n".join(parts).encode())


def _sources(function: Any, seen: dict[int, Any]) -> list[str]:
    """Of a function or class of the script that runs, and of all of the script that it refers to by name."""
    defined = _defined(function)
    if id(defined) in seen or getattr(defined, "__module__", None) != "__main__":
        return []
    seen[id(defined)] = defined
    found = [_source_text(defined)]
    for code in _codes(defined):
        for name in code.co_names:
            value = vars(sys.modules["__main__"]).get(name)
            if value is not None and not inspect.ismodule(value):
                found += _sources(value, seen) if callable(value) else [f"{name} = {_stable(value)}"]
    for value in _closure(defined):
        found += _sources(value, seen) if callable(value) else []
    return found


def _codes(defined: Any) -> list[CodeType]:
    """All code of a function or class, with that of functions inside of it."""
    methods = filter(inspect.isfunction, vars(defined).values()) if inspect.isclass(defined) else [defined]
    found = [method.__code__ for method in methods if hasattr(method, "__code__")]
    for code in found:  # which grows
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def _held(function: Callable) -> str:
    held = []
    while isinstance(function, functools.partial):
        held.append(_stable([function.args, function.keywords]))
        function = function.func
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None) if inspect.isroutine(function) else function
    if not (inspect.isroutine(owner) or inspect.isclass(owner) or inspect.ismodule(owner)):
        held.append(_stable(getattr(owner, "__dict__", {})))
    return " ".join(held)


def _closure(defined: Any) -> list[Any]:
    values = []
    for cell in getattr(defined, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return values


def _stable(value: Any) -> str:
    """Text that is the same in another process for the same plain value; other objects are shown by their type."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{_stable(k)}: {_stable(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_stable, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_stable, value))) + "}"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    return function_label(value) if callable(value) else type(value).__name__


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
        return (repr(defined) if code is None else marshal.dumps(_nowhere(code)).hex()) + bound


def _nowhere(code: CodeType) -> CodeType:
    """Compiled code without the place that it was compiled at, which may differ from process to process."""
    constants = tuple(_nowhere(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_consts=constants)


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _load_file(path: Path, asked: str) -> ModuleType:
    digest = _sha256(path.read_bytes())
    if (loaded := _FILES.get(str(path))) is not None and loaded[0] == digest:
        return loaded[1]
    name = f"{path.stem}_{_sha256(f'{path} {digest}'.encode())[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's own file does
        del sys.modules[name]
        raise ValueError(f"{asked}: {path.name} {_raised(error)}") from error
    _FILES[str(path)] = digest, module
    return module


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else repr(error.code)}): take that out of it"
    return f"raised {type(error).__name__}: {error}"
