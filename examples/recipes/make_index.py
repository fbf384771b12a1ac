"""The index of the recipes, made from their YAML and from the numbers of the papers.

    python examples/recipes/make_index.py           # writes the tables of README.md anew
    python examples/recipes/make_index.py --check   # exits 1 where they are not what the YAML says

A row is a recipe, or a recipe with flags (`variants.yaml` in its folder). Its `target` names one or several of the
`rows` in docs/papers/<folder>.yaml; `note` is ours, and so is `measured`, what the run gave with this package.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from trl_credit.settings.recipes import Recipe, recipes_in


RECIPES = Path(__file__).resolve().parent
NO_TARGET = "not in the text"
PAPERS = RECIPES.parents[1] / "docs" / "papers"
TABLE = re.compile(r"(<!-- rows of (\w+), by make_index.py -->\n).*?(<!-- end -->)", re.S)


def rows_of(folder: str) -> list[Recipe]:
    """The recipes of a folder by name, each with its variants behind it. Raises what [`recipes_in`] does."""
    return recipes_in(RECIPES / folder)


def targets(row: Recipe) -> list[str]:
    """Keys of the paper's rows; empty if the text has none."""
    target = row.about.get("target", NO_TARGET)
    return [] if target == NO_TARGET else [target] if isinstance(target, str) else target


def flags_of(row: Recipe) -> list[str]:
    """The settings over a recipe's file as words of a command line."""
    words = []
    for name, value in row.settings.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(v).lower() if isinstance(v, bool) else str(v) for v in values)]
    return words


def read_paper(folder: str) -> dict[str, Any]:
    """What docs/papers has of a folder's paper."""
    return yaml.safe_load((PAPERS / f"{folder}.yaml").read_text(encoding="utf-8"))


def published(entry: dict[str, Any], paper: dict[str, Any]) -> str:
    """A row of a paper in words: numbers by column or what its text says, a remark, and where it stands."""
    if "said" in entry:
        return f"{entry['said']} ({entry['where']})"
    values = entry["values"]
    if isinstance(values, list):
        values = dict(zip(paper["columns"], values, strict=True))
    text = ", ".join(f"{column} {value:.{paper['decimals']}f}" for column, value in values.items())
    if "tokens" in entry:
        text += f", {entry['tokens']:.0f} tokens per response"
    remark = f"; {entry['remark']}" if "remark" in entry else ""
    return f"{text} ({entry['where']}){remark}"


def table(folder: str) -> str:
    """The Markdown of a folder's rows.

    Raises:
        ValueError: a target that is not in docs/papers.
    """
    if folder == "sft":
        lines = ["| row | command | GPUs |", "|---|---|---|"]
        for row in rows_of(folder):
            gpus = re.search(r"^# GPUs: (\d+)", row.recipe.read_text(encoding="utf-8"), re.M)
            lines.append(f"| {_name(row)} | {_command(row)} | {gpus[1]} |")
        return "\n".join(lines) + "\n"
    paper, rows = read_paper(folder), rows_of(folder)
    lines = ["| row | command | published | ours | GPUs |", "|---|---|---|---|---|"]
    for row in rows:
        if lost := set(targets(row)) - paper["rows"].keys():
            raise ValueError(f"{folder}/{row.name}: docs/papers/{folder}.yaml has no row {min(lost)!r}, check `target`")
        said = [published(paper["rows"][key], paper) for key in targets(row)] or [NO_TARGET]
        said += [row.about["note"]] if "note" in row.about else []
        ours = row.about.get("measured", "")
        lines.append(f"| {_name(row)} | {_command(row)} | {'; '.join(said)} | {ours} | {row.about['gpus']} |")
    named = {key for row in rows for key in targets(row)}
    others = {key: entry for key, entry in paper["rows"].items() if key not in named}
    if others:
        lines += ["", "Without a recipe:", ""]
        lines += [f"* {key.replace('_', ' ')}: {published(entry, paper)}" for key, entry in others.items()]
    return "\n".join(lines) + "\n"


def index(text: str) -> str:
    """README.md with its tables as the YAML has them."""
    return TABLE.sub(lambda match: f"{match[1]}\n{table(match[2])}\n{match[3]}", text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of examples/recipes/README.md.")
    parser.add_argument("--check", action="store_true", help="Write nothing; exit 1 if they are out of date.")
    check = parser.parse_args(argv).check
    readme = RECIPES / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = index(old)
    if check and new != old:
        print("error: examples/recipes/README.md is out of date: run python examples/recipes/make_index.py")
        return 1
    if new != old:
        readme.write_text(new, encoding="utf-8")
    return 0


def _name(row: Recipe) -> str:
    return row.name if row.flags else f"[{row.name}]({row.folder}/{row.recipe.name})"


def _command(row: Recipe) -> str:
    return f"`{' '.join(['--config', f'examples/recipes/{row.folder}/{row.recipe.name}', *flags_of(row)])}`"


if __name__ == "__main__":
    sys.exit(main())
