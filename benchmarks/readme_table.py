"""The README's table of algorithms, from the presets; `python docs/lint.py --write` writes it."""

import re
from pathlib import Path

from pages import ROOT

from trl_credit.presets import PRESETS


README = ROOT / "README.md"


def readme_table() -> str:
    """The README's table of algorithms, as Markdown. The name leads to the algorithm's own page."""
    rows = [
        f"| [`{name}`](docs/algorithms/{name}.md) | `{preset.config.__name__.removesuffix('Config')}Trainer` | "
        f"{preset.use_when} | {preset.cost} | "
        f"[{preset.paper['id']}](https://arxiv.org/abs/{preset.paper['id']}) |"
        for name, preset in PRESETS.items()
    ]
    return "\n".join(["| `--algo` | class | use it when | costs | paper |", "|---|---|---|---|---|", *rows])


def files() -> dict[Path, str]:
    """README.md with its table made anew."""
    table = re.compile(r"^\| `--algo` \|.*\n(?:\|.*\n)+", re.MULTILINE)
    return {README: table.sub(lambda _: readme_table() + "\n", README.read_text(encoding="utf-8"))}
