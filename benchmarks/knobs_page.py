"""The tables of docs/knobs.md, from the declarations of the knobs and the docstrings of their classes.

python benchmarks/knobs_page.py
"""

from dataclasses import fields

from pages import ROOT, table, write

from trl_credit import CreditConfig
from trl_credit.config.knobs import Condition, defaults, in_words, knobs_of
from trl_credit.presets import PRESETS


PAGE = ROOT / "docs" / "knobs.md"


SHORT = {
    " to anything but ": "≠",
    " to a whole number of at least ": "≥",
    "tree_branching to two levels or more": "len(tree_branching)>1",
    "teacher_prompt to 'success', or a text with {success}": "{success} in teacher_prompt",
    " and ": ", ",
}


def shown(conditions: tuple[Condition, ...]) -> str:
    """Conditions as code, without that on a credit function of the user: the introduction of the page tells it."""
    codes = dict.fromkeys(in_words(condition) for condition in conditions if "credit" not in condition)
    for words, short in SHORT.items():
        codes = [code.replace(words, short) for code in codes]
    return " or ".join(f"`{code}`" for code in codes)


def row(config_class: type, name: str, second: str = "") -> list[str]:
    """Name and default, when it acts (or `second`), and what it does: its entry in the docstring."""
    acts = second or shown(knobs_of(config_class)[name].acts)
    (text,) = [f.metadata["help"] for f in fields(config_class) if f.name == name]
    return [cell.replace("|", "\\|") for cell in (f"`{name}={defaults(config_class)[name]!r}`", acts, text)]


def tables() -> dict[str, str]:
    """The tables by their names in the page: one of each heading, and one of the knobs of single algorithms."""
    rows: dict[str, list[list[str]]] = {}
    for name, knob in knobs_of(CreditConfig).items():
        rows.setdefault(knob.heading.lower().replace(" ", "_"), []).append(row(CreditConfig, name))
    head = ["knob=default", "acts with", "meaning"]
    by_heading = {heading: table(head, lines, texts=3) for heading, lines in rows.items()}
    own = [
        row(preset.config, name, f"`{algo}`")
        for algo, preset in PRESETS.items()
        for name in knobs_of(preset.config)
        if name not in knobs_of(CreditConfig)
    ]
    return by_heading | {"single_algorithms": table(["knob=default", "algorithm", "meaning"], own, texts=3)}


if __name__ == "__main__":
    write(PAGE, tables())
