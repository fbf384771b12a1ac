"""Named presets of the knobs, one file per algorithm, and the registry that `--algo` reads. Imports `config`, and may
import `loss` for a credit function.

`docs/architecture.md` lists the steps to add an algorithm. `benchmarks/algorithm_lists.py` writes everything that lists
them all: the stub `__init__.pyi`, the README's table, tables of other pages, and the contents of the site.
"""

from importlib import import_module

from .. import STEMS
from .preset import PAPERS, Preset, paper


__all__ = ["PAPERS", "PRESETS", "Preset", "paper", "summaries"]

PRESETS: dict[str, Preset] = {name: import_module(f".{name}", __name__).PRESET for name in STEMS}


def summaries() -> str:
    """`name (what it does), …`, for all algorithms."""
    return ", ".join(f"{name} ({preset.summary})" for name, preset in PRESETS.items())
