"""Helper modules of functions: the user's own modules that they need besides their files."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .digests import sha256, unbound


# also where they are installed from a clone: their versions are not a run's identity
_LIBRARIES = {*"accelerate datasets deepspeed peft torch transformers trl trl_credit vllm".split()}
_NOT_THE_USERS = _LIBRARIES | sys.stdlib_module_names
_INSTALLED = {"site-packages", "dist-packages"}


def helper_modules(functions: Iterable[Callable]) -> dict[str, str]:
    """The loaded modules that lie beside the file of one of these functions, or below its folder: name → SHA-256 of the
    file.

    Left out are the files of the functions themselves, the script that runs, what lies in site-packages, and this
    package. A module that a function imports when it is called counts from then on.
    """
    own = {file for function in functions if (file := _file_of(unbound(function)[0])) is not None}
    folders = tuple(str(_top_folder(file) / "_")[:-1] for file in own)  # each ends with a separator
    loaded = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    loaded.pop("__main__", None)
    return {
        name: sha256(path.read_bytes())
        for name, file in loaded.items()
        if isinstance(file, str) and file.startswith(folders)  # thousands are loaded
        if (path := Path(file)) not in own and _is_users(name, path)
    }


def digest_of_module(name: str) -> str | None:
    """SHA-256 of the file of a module, which is not imported; `None` if it is not found."""
    stem = name.replace(".", "/")
    files = [Path(folder, file) for folder in sys.path for file in (f"{stem}/__init__.py", f"{stem}.py")]
    return next((sha256(file.read_bytes()) for file in files if file.is_file()), None)


def _file_of(defined: Callable) -> Path | None:
    name = getattr(defined, "__module__", None) or ""
    if (file := getattr(sys.modules.get(name), "__file__", None)) is None:
        return Path.cwd() / name if name == "__main__" else None  # a notebook imports from the working folder
    return Path(file) if _is_users(name, Path(file)) else None


def _top_folder(file: Path) -> Path:
    """The folder of a file, or of the package that it is in."""
    while (file.parent / "__init__.py").is_file():
        file = file.parent
    return file.parent


def _is_users(name: str, path: Path) -> bool:
    return name.partition(".")[0] not in _NOT_THE_USERS and path.is_file() and not _INSTALLED & set(path.parts)
