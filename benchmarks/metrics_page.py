"""The tables of docs/metrics.md whose metrics are registered in `trl_credit/loss/metrics.py`, from their docstrings.

python benchmarks/metrics_page.py
"""

import inspect
import re
from collections.abc import Callable, Iterable

from pages import ROOT, table, write

from trl_credit.loss import metrics


PAGE = ROOT / "docs" / "metrics.md"
OF_CLIPPING = ("trained_tokens", "clip_fraction", "kept_fraction", "selected_fraction")
_FORM = re.compile(r"(.+?)\.\n\nUnit: (.+?)\nIf it looks odd: (.+?)(?:\n\n.*)?", re.DOTALL)


def shown(names: Iterable[str]) -> str:
    """Names for the first column: numbered ones as `quarter_1…4`."""
    numbers: dict[str, list[str]] = {}
    for name in names:
        stem, number = re.fullmatch(r"(.+?)(\d*)", name).groups()
        numbers.setdefault(stem, []).append(number)
    return ", ".join(f"`credit/{stem}{'…'.join(dict.fromkeys([of[0], of[-1]]))}`" for stem, of in numbers.items())


def row(names: Iterable[str], measure: Callable) -> list[str]:
    """Name, unit, meaning, and what to do if it looks odd.

    Raises:
        ValueError: the docstring does not have the form of `trl_credit/loss/metrics.py`.
    """
    if not (parts := _FORM.fullmatch(inspect.getdoc(measure) or "")):
        raise ValueError(f"{measure.__name__}: its docstring must have a meaning, 'Unit:' and 'If it looks odd:'")
    meaning, unit, odd = (" ".join(part.split()) for part in parts.groups())
    return [shown(names), unit, meaning[0].lower() + meaning[1:], odd]


def tables() -> dict[str, str]:
    """The tables by their names in the page."""
    rows: dict[str, list[list[str]]] = {"clipping": [], "credit": []}
    for names, _, measure in metrics.METRICS:
        rows["clipping" if measure.__name__ in OF_CLIPPING else "credit"].append(row(names, measure))
    head = ["metric", "unit", "meaning", "if it looks odd"]
    return {name: table(head, lines, texts=4) for name, lines in rows.items()}


if __name__ == "__main__":
    write(PAGE, tables())
