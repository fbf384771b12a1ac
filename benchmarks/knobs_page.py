"""The tables of docs/knobs.md, from the declarations of the knobs and the docstrings of their classes.

python benchmarks/knobs_page.py
"""

from dataclasses import fields

from pages import ROOT, table, write

from trl_credit import CreditConfig
from trl_credit.config.knobs import defaults, in_words, knobs_of
from trl_credit.presets import PRESETS


PAGE = ROOT / "docs" / "knobs.md"


def row(config_class: type, name: str, third: str = "") -> list[str]:
    """Name, default, when it acts (or `third`), and what it does: its entry in the docstring."""
    knobs = knobs_of(config_class)
    conditions = (in_words(condition).replace(" to anything but ", " other than ") for condition in knobs[name].acts)
    acts = third or ", or ".join(f"`{words.replace(' to ', ' ')}`" for words in dict.fromkeys(conditions)) or "all"
    (text,) = [f.metadata["help"] for f in fields(config_class) if f.name == name]
    return [cell.replace("|", "\\|") for cell in (f"`{name}`", f"`{defaults(config_class)[name]}`", acts, text)]


def tables() -> dict[str, str]:
    """The tables by their names in the page: one of each heading, and one of the knobs of single algorithms."""
    rows: dict[str, list[list[str]]] = {}
    for name, knob in knobs_of(CreditConfig).items():
        rows.setdefault(knob.heading.lower().replace(" ", "_"), []).append(row(CreditConfig, name))
    head = ["knob", "default", "acts with", "meaning"]
    by_heading = {heading: table(head, lines, texts=4) for heading, lines in rows.items()}
    own = [
        row(preset.config, name, f"`{algo}`")
        for algo, preset in PRESETS.items()
        for name in knobs_of(preset.config)
        if name not in knobs_of(CreditConfig)
    ]
    return by_heading | {"single_algorithms": table(["knob", "default", "algorithm", "meaning"], own, texts=4)}


if __name__ == "__main__":
    write(PAGE, tables())
