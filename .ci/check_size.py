"""Fails if the package has grown by more than 2 % over the number of code lines in `.ci/size`: python .ci/check_size.py

Who needs more lines writes the new number into `.ci/size` in the same commit, and the reason into its message, in a
line that begins with "Size: ". A code line is not blank, not a comment and not in a docstring.
"""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
SIZE = ROOT / ".ci" / "size"
NO_CODE = {getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENCODING ENDMARKER".split()}


def code_lines(text: str) -> int:
    """Lines with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout


def problem() -> str | None:
    """What is wrong, in a line."""
    limit = int(SIZE.read_text())
    size = sum(code_lines(path.read_text(encoding="utf-8")) for path in (ROOT / "trl_credit").rglob("*.py"))
    print(f"trl_credit has {size:,} lines of code; .ci/size has {limit:,}")
    if size > 1.02 * limit:
        return f"error: that is {size / limit - 1:.1%} more. Delete, or change .ci/size in this commit and say why"
    commit, _, message = git("log", "-1", "--format=%H%n%B", "--", ".ci/size").partition("\n")
    before = git("show", f"{commit}^:.ci/size") if commit else ""  # empty in a copy without history
    if before and limit > int(before) and not any(line.startswith("Size: ") for line in message.splitlines()):
        return f"error: commit {commit[:9]} raises .ci/size without a line 'Size: …' with the reason in its message"
    return None


if __name__ == "__main__":
    sys.exit(problem())
