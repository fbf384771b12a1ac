"""Functions by name: `package.module.function` or `file.py:function`."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path


def resolve_function(name: str, *, what: str, known: Iterable[str]) -> Callable:
    """The function that `name` points to: dotted path (`package.module.function`) or `file.py:function`.

    Args:
        name (`str`):
            The file, or the module, is executed once per process.
        what (`str`):
            What the function is, for the messages: "reward", "step_splitter".
        known (iterable of `str`):
            Names that would have been accepted as well, for the messages.

    Raises:
        ValueError: there is no such function.
    """
    if ":" in name:
        path, _, attribute = name.rpartition(":")
        if not Path(path).is_file() or Path(path).suffix != ".py":
            raise ValueError(f"{what} {name!r}: there is no file {path!r} that ends in .py")
        module = _load_file(str(Path(path).resolve()))
    elif "." in name:
        module_name, _, attribute = name.rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(f"{what} {name!r}: {error}") from error
    else:
        raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(known)}, or give package.module.function")
    if not callable(vars(module).get(attribute)):
        raise ValueError(f"{what} {name!r}: {attribute!r} is not a function there")
    return vars(module)[attribute]


@functools.cache
def _load_file(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
