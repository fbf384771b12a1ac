"""
Settings of the papers' runs, for `trl-credit train --config NAME`.

  trl-credit recipes                       lists all recipes
  trl-credit recipes gspo 4b               lists the recipes that contain all of these words
  trl-credit recipes show NAME             prints the YAML of a recipe, with its comments
  trl-credit recipes show NAME --resolved  prints all its settings, with those of its `base` files
  trl-credit recipes path NAME             prints the path of its file
"""

# imports no torch

import shutil
import textwrap

import yaml

from ..settings.files import read_settings
from ..settings.parser import OneLineParser
from ..settings.recipes import SFT, VARIANTS, Recipe, find_recipe, meant_recipe, search


def main(argv: list[str]) -> int:
    """The exit code: 0, or 1 if nothing was found. Raises `ValueError` or `OSError` for wrong input."""
    parser = OneLineParser(prog="trl-credit recipes", description=__doc__, usage="%(prog)s …")
    parser.add_argument("words", nargs="*", metavar="WORD", help="words to search for, or show NAME, or path NAME")
    parser.add_argument("--resolved", action="store_true", help="with show: all settings, in one file")
    args = parser.parse_args(argv)
    if args.words[:1] not in (["show"], ["path"]):
        return _list(args.words)
    if len(args.words) != 2:
        raise ValueError(f"`{args.words[0]} NAME` takes the name of one recipe: `recipes` lists them")
    action, name = args.words
    if (recipe := find_recipe(name)) is None:
        fix = f"did you mean {meant!r}?" if (meant := meant_recipe(name)) else "`recipes` lists them"
        raise ValueError(f"there is no recipe {name!r}: {fix}")
    if action == "path" and recipe.flags:
        raise ValueError(f"{name!r} has no file: `show` prints its flags over {recipe.recipe.stem}")
    print(recipe.recipe if action == "path" else _text(recipe, resolved=args.resolved))
    return 0


def _list(words: list[str]) -> int:
    rows = search(words)
    if not rows:
        print(f"no recipe has all of: {' '.join(words)}")
        return 1
    width = max(len(row.full_name) for row in rows) + 2
    columns = max(width + 40, min(shutil.get_terminal_size().columns, 160))
    for row in rows:
        text = textwrap.fill(row.says, columns, initial_indent=" " * width, subsequent_indent=" " * width)
        print(f"{row.full_name:<{width}}{text[width:]}")
    if any(row.folder == SFT for row in rows):
        print(f"\nThe recipes of {SFT}/ are for TRL: trl sft --config $(trl-credit recipes path NAME)")
    return 0


def _text(recipe: Recipe, *, resolved: bool) -> str:
    """A recipe as YAML: its file with its comments, or its flags over one, or all its settings."""
    if not resolved and not recipe.flags:
        return recipe.recipe.read_text(encoding="utf-8").rstrip("\n")
    head, settings = f"{recipe.folder}/{VARIANTS}", {"base": recipe.recipe.name} | recipe.settings
    if resolved:
        head = f"{recipe.full_name}: {recipe.says}"
        settings = read_settings([str(recipe.recipe)])[0] | recipe.settings
    return f"# {head}\n" + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100).rstrip("\n")
