"""What is derived from the algorithms' files: `--help`, the README's table, and what editors know of the package."""

import re
from pathlib import Path

from .. import _HOMES
from . import _PREFIXES, ALGORITHMS


PACKAGE = Path(__file__).resolve().parents[1]
# the part of a file that is derived; the README's is between comments, which do not show
_TABLE = re.compile(r"(?<=<!-- algorithms -->\n).*?(?=\n<!-- end of algorithms -->)", re.DOTALL)
_NAMES = re.compile(r"^if TYPE_CHECKING:\n.*?^\]$", re.DOTALL | re.MULTILINE)


def summaries() -> str:
    """`name (what it does), …`, of all algorithms."""
    return ", ".join(f"{name} ({trainer.summary})" for name, (_, trainer) in ALGORITHMS.items())


def readme_table() -> str:
    """The README's table of algorithms."""
    rows = [
        f"| `{name}` | `{trainer.__name__}` | {trainer.summary} | "
        f"[{trainer._paper['id']}](https://arxiv.org/abs/{trainer._paper['id']}) |"
        for name, (_, trainer) in ALGORITHMS.items()
    ]
    return "\n".join(["| `--algo` | class | what it does | paper |", "|---|---|---|---|", *rows])


def public_names() -> str:
    """The part of `trl_credit/__init__.py` that editors and type checkers read, since they run nothing."""
    by_module: dict[str, list[str]] = {}
    for name, module in _HOMES.items():
        by_module.setdefault(module, []).append(name)
    for module, prefix in _PREFIXES.items():
        by_module[f"algorithms.{module}"] = [f"{prefix}Config", f"{prefix}Trainer"]
    imports = [f"    from .{module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
    public = [f'    "{name}",' for name in sorted(name for names in by_module.values() for name in names)]
    return "\n".join(["if TYPE_CHECKING:", *imports, "", "__all__ = [", *public, "]"])


def derived(readme: str, package: str) -> tuple[str, str]:
    """The texts of `README.md` and `trl_credit/__init__.py`, with what is derived in them as it should be.

    Raises:
        ValueError: one of them has no place for it, or several.
    """
    return _put(readme_table(), _TABLE, readme, "README.md"), _put(public_names(), _NAMES, package, "__init__.py")


def _put(part: str, place: re.Pattern[str], text: str, name: str) -> str:
    if len(place.findall(text)) != 1:
        raise ValueError(f"{name} should have one place that matches {place.pattern!r}")
    return place.sub(lambda found: part, text)
