"""Prints the README's table of algorithms:  python benchmarks/readme_table.py"""

from trl_credit.presets import PRESETS


def readme_table() -> str:
    """The README's table of algorithms, as Markdown. The name leads to the algorithm's own page."""
    rows = [
        f"| [`{name}`](docs/algorithms/{name}.md) | `{preset.config.__name__.removesuffix('Config')}Trainer` | "
        f"{preset.use_when} | {preset.cost} | "
        f"[{preset.paper['id']}](https://arxiv.org/abs/{preset.paper['id']}) |"
        for name, preset in PRESETS.items()
    ]
    return "\n".join(["| `--algo` | class | use it when | costs | paper |", "|---|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(readme_table())
