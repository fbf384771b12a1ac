"""docs/knobs.md names every knob, and nothing else."""

import re
from dataclasses import MISSING, fields

from scripts import ROOT

from trl_credit import CreditConfig
from trl_credit.config.knobs import knobs_of
from trl_credit.presets import PRESETS


DOCS = ROOT / "docs"


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' lines."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def default_of(config_class: type, name: str) -> str:
    (field,) = [field for field in fields(config_class) if field.name == name]
    return str(field.default if field.default is not MISSING else field.default_factory())


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", (DOCS / "knobs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_knob_has_a_row_with_its_default_under_its_heading():
    knobs, found = knobs_of(CreditConfig), {}
    for heading, text in sections().items():
        if heading != "FIPO, Clip-Cov and KL-Cov":
            for name, default, _, _ in rows(text):
                found[name.strip("`")] = (heading, default.strip("`"))
    assert found == {name: (knob.heading, default_of(CreditConfig, name)) for name, knob in knobs.items()}


def test_every_knob_of_a_single_algorithm_has_a_row():
    ours = set(knobs_of(CreditConfig))
    expected = {
        (name, default_of(preset.config, name), algo)
        for algo, preset in PRESETS.items()
        for name in set(knobs_of(preset.config)) - ours
    }
    found = [tuple(cell.strip("`") for cell in row[:3]) for row in rows(sections()["FIPO, Clip-Cov and KL-Cov"])]
    assert set(found) == expected and len(found) == len(expected)


def test_a_row_names_every_choice_of_a_knob():
    text = {name.strip("`"): line for part in sections().values() for name, *line in rows(part)}
    for name, knob in knobs_of(CreditConfig).items():
        said = " ".join(text[name])
        left_out = [choice for choice in (knob.values.names if knob.values else ()) if f"{choice}" not in said]
        assert not left_out, f"{name}: {left_out}"
