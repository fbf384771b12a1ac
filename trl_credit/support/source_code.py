"""The part of a file that a function needs, and where it stands."""

import ast
import dis
import sys
from pathlib import Path

from .digests import global_names, sha256
from .files import short_path


# statements that change no name which they only use
_BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def code_of(name: str) -> dict[str, str] | None:
    """The `file` of a function that is named `file.py:function` or `package.module.function`, relative where it lies in
    the working folder, its name there as `function`, and `code`, a digest of what it needs of the file. `None` for
    another name, and for this package's."""
    place, _, function = name.rpartition(":" if ":" in name else ".")
    module = None if ":" in name else sys.modules.get(place)
    file = Path(place if module is None else module.__file__ or "")
    if not file.is_file() or place.partition(".")[0] == __package__.partition(".")[0]:
        return None
    return {"file": str(short_path(file)), "function": function, "code": needed_code(file, function)[0]}


def needed_code(file: str | Path, function: str) -> tuple[str, int]:
    """Hexadecimal SHA-256 of what a function needs of its file, and the number of its first line.

    Those are the statements at the top level that bind its name, and all that bind or may change a name which one of
    them uses. A definition, an import or an assignment to names changes no other name; a loop or a call may change
    each that it uses. Comments and other statements do not count. If none binds it, the whole file counts, and the
    line is 0.

    Raises:
        OSError: there is no such file.
        SyntaxError: it is not Python.
    """
    content = Path(file).read_bytes()
    body = ast.parse(content).body
    # what a script does when it is run is not what another process imports
    statements = [x for x in body if not (isinstance(x, ast.If) and "__main__" in ast.unparse(x.test))]
    codes = [compile(ast.Module([statement], []), str(file), "exec") for statement in statements]
    bound = [{x.argval for x in dis.get_instructions(code) if x.opname == "STORE_NAME"} for code in codes]
    used = [global_names(code) for code in codes]
    touched = [b if b and isinstance(x, _BINDING) else b | u for x, b, u in zip(statements, bound, used, strict=True)]
    wanted, needed = {function}, set()
    while more := {i for i, names in enumerate(touched) if i not in needed and names & wanted}:
        needed |= more
        wanted |= set().union(*(used[i] for i in more))
    line = next((statements[i].lineno for i in sorted(needed) if function in bound[i]), 0)
    text = "\n".join(ast.unparse(statements[i]) for i in sorted(needed)).encode() if line else content
    return sha256(text), line
