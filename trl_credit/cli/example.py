"""
Examples to start from.

  trl-credit example                 lists them
  trl-credit example sums [FOLDER]   copies one to a folder, ./sums by default, and says what to run
"""

# imports no torch

import ast
import shlex
import textwrap
from pathlib import Path

from ..settings.parser import OneLineParser
from ..support.errors import choose
from ..support.files import write_atomically
from ..support.packaged import packaged_folder


def main(argv: list[str]) -> None:
    """Runs the command. Raises `ValueError` for an unknown example or files that are there, `OSError` from the disk."""
    parser = OneLineParser(prog="trl-credit example", description=__doc__, usage="%(prog)s …")
    parser.add_argument("name", nargs="?", help="name of an example")
    parser.add_argument("folder", nargs="?", type=Path, help="a folder, which is made")
    args = parser.parse_args(argv)
    # an example is a folder with a script of the same name
    paths = sorted(path for path in packaged_folder("examples").glob("*/*.py") if path.stem == path.parent.name)
    scripts = {path.stem: path for path in paths}
    if args.name is None:
        rows = [f"  {name:<20}{_about(script)[0]}" for name, script in scripts.items()]
        print("\n".join(["trl-credit example NAME copies one:\n", *rows]))
        return
    if args.name not in scripts:
        raise ValueError(f"there is no example {args.name!r}{choose(args.name, scripts)}")
    script, target = scripts[args.name], args.folder or Path(args.name)
    files = sorted(path for path in script.parent.iterdir() if path.is_file())
    if existing := [target / file.name for file in files if (target / file.name).exists()]:
        raise ValueError(f"{str(existing[0])!r} is there already: name another folder")
    for file in files:
        write_atomically(target / file.name, file.read_bytes())
    print(f"{target}/ has {', '.join(file.name for file in files)}. Next:\n")
    print(textwrap.indent(f"cd {shlex.quote(str(target))}\n{_about(script)[1]}", "  "))


def _about(script: Path) -> tuple[str, str]:
    """What an example is, and the commands to run in its folder: the docstring of its script."""
    first, _, rest = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")
    return first, textwrap.dedent(rest).strip()
