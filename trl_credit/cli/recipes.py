"""`trl-credit recipes`: lists, searches and prints recipes. Imports no torch."""

import shutil
import textwrap
from pathlib import Path

import yaml

from ..settings.files import read_settings
from ..settings.parser import OneLineParser
from ..settings.recipes import SFT, VARIANTS, Recipe, find_recipe, meant_recipe, search


_HELP = """\
Settings of the papers' runs, for `trl-credit train --config NAME`.

  trl-credit recipes                       lists all recipes
  trl-credit recipes gspo 4b               lists the recipes that contain all of these words
  trl-credit recipes show NAME             prints the YAML of a recipe, with its comments
  trl-credit recipes show NAME --resolved  prints all its settings, with those of its `base` files
  trl-credit recipes path NAME             prints the path of its file
"""


def main(argv: list[str]) -> int:
    """The exit code: 0, or 1 if nothing was found. Raises `ValueError` or `OSError` for wrong input."""
    parser = OneLineParser(prog="trl-credit recipes", description=_HELP, usage="%(prog)s …")
    parser.add_argument("words", nargs="*", metavar="WORD", help="words to search for, or show NAME, or path NAME")
    parser.add_argument("--resolved", action="store_true", help="with show: all settings, in one file")
    args = parser.parse_args(argv)
    action = args.words[0] if args.words[:1] in (["show"], ["path"]) else None
    if action and len(args.words) != 2:
        raise ValueError(f"`{action} NAME` takes the name of one recipe: `recipes` lists them")
    if args.resolved and action != "show":
        raise ValueError("--resolved goes with `show NAME`")
    if not action:
        return _list(args.words)
    print(_path(args.words[1]) if action == "path" else _show(args.words[1], resolved=args.resolved))
    return 0


def _list(words: list[str]) -> int:
    rows = search(words)
    if not rows:
        print(f"no recipe has all of: {' '.join(words)}")
        return 1
    width = max(len(row.full_name) for row in rows) + 2
    columns = max(width + 40, min(shutil.get_terminal_size().columns, 160))
    for row in rows:
        lines = textwrap.wrap(row.says, columns - width, break_on_hyphens=False)
        print(f"{row.full_name:<{width}}" + f"\n{'':<{width}}".join(lines))
    if any(row.folder == SFT for row in rows):
        print(f"\nThe recipes of {SFT}/ are for TRL: trl sft --config $(trl-credit recipes path NAME)")
    return 0


def _find(name: str) -> Recipe:
    if (row := find_recipe(name)) is not None:
        return row
    meant = meant_recipe(name)
    raise ValueError(f"there is no recipe {name!r}: {f'did you mean {meant!r}?' if meant else '`recipes` lists them'}")


def _path(name: str) -> Path:
    row = _find(name)
    if row.flags:
        raise ValueError(f"{row.full_name!r} has no file: `show` prints its flags over {row.recipe.stem}")
    return row.recipe


def _show(name: str, *, resolved: bool) -> str:
    row = _find(name)
    if resolved:
        head, settings = f"{row.full_name}: {row.says}", read_settings([str(row.recipe)])[0] | row.settings
    elif row.flags:
        head, settings = f"{row.folder}/{VARIANTS}", {"base": row.recipe.name} | row.settings
    else:
        return row.recipe.read_text(encoding="utf-8").rstrip("\n")
    return f"# {head}\n" + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100).rstrip("\n")
