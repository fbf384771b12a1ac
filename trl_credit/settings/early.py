"""Names of a command line that are wrong, found before torch and TRL are imported, which takes seconds."""

import ast
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from .. import STEMS
from ..support.errors import raise_together
from ..support.functions import is_custom_function
from ..support.signals import without_flag
from .parser import read_files, unknown_algorithm, unknown_arguments, unknown_field


_PACKAGE = Path(__file__).parents[1]
_OURS = ("config/*.py", "presets/*.py", "data/*.py", "settings/arguments.py")
# files of other packages that declare fields
_THEIRS = {
    "trl": ("trainer/grpo_config.py", "trainer/base_config.py", "trainer/model_config.py"),
    "transformers": ("training_args.py",),
}


def check_names(argv: list[str], *, flags: Collection[str] = ()) -> None:
    """Checks the names of flags, of the algorithm, of recipes, and of the fields in YAML files.

    Args:
        argv (`list[str]`):
            The command line without the program.
        flags (collection of `str`, *optional*):
            Further flags of the command.

    Raises:
        ValueError: a file cannot be read, or a name is unknown; the message has a line for each.
    """
    errors: list[Exception] = []
    try:
        typed, config, files, words = read_files(argv)
    except ValueError as error:
        errors.append(error)
        typed, config, files, words = read_files(without_flag(argv, "config"))
    if (known := field_names()) is None:
        return
    is_class = is_custom_function((config | typed).get("credit"))  # perhaps, with settings that only its file tells
    if not is_class:
        errors += [unknown_field(name, files[name], known) for name in config if name not in {*known, "env"}]
    algo = str((config | typed).get("algo", "grpo"))
    if algo not in STEMS:
        errors.append(unknown_algorithm(algo, STEMS, file=None if "algo" in typed else files.get("algo")))
    every = [*flags, *(f"--{name}" for name in known)]
    names = {spelled(flag) for flag in (*every, "--help", "--config")}
    unknown = [word for word in words if word.startswith("--") and spelled(word) not in names]
    raise_together([*errors, *([] if is_class else unknown_arguments(unknown, every, lists="--help all"))])


def spelled(flag: str) -> str:
    """The name of the field that a flag sets: "use_vllm" of "--no-use-vllm"."""
    return flag.partition("=")[0][2:].replace("-", "_").removeprefix("no_")


def field_names() -> set[str] | None:
    """Names of the fields of a run and of other dataclasses beside them, read from their source; `None` if a file is
    not there, as releases of TRL differ."""
    paths = [path for pattern in _OURS for path in _PACKAGE.glob(pattern)]
    paths += [Path(find_spec(package).origin).parent / name for package, names in _THEIRS.items() for name in names]
    if not all(path.is_file() for path in paths):
        return None
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    bodies = [node.body for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
