"""Prints the README's table of algorithms:  python -m trl_credit.presets"""

from . import PRESETS


def readme_table() -> str:
    """The README's table of algorithms, as Markdown."""
    rows = [
        f"| `{name}` | `{preset.config.__name__.removesuffix('Config')}Trainer` | {preset.summary} | "
        f"[{preset.paper['id']}](https://arxiv.org/abs/{preset.paper['id']}) |"
        for name, preset in PRESETS.items()
    ]
    return "\n".join(["| `--algo` | class | what it does | paper |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(readme_table())
