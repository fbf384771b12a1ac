"""`trl-credit recipes`: lists, searches and prints the rows of the papers' tables. Needs no torch."""

import shutil
import textwrap
from argparse import RawDescriptionHelpFormatter

import yaml

from ..mistakes import OneLineParser, fail
from ..recipes import SFT, VARIANTS, Recipe, find_recipe, meant_recipe, search
from ..settings_files import read_settings


_HELP = """\
Settings of the papers' runs, for `trl-credit train --config NAME`.

  trl-credit recipes                       lists them all
  trl-credit recipes gspo 4b               those in which all of these words stand
  trl-credit recipes show NAME             the YAML of one, with its comments
  trl-credit recipes show NAME --resolved  every setting of one, those of its `base` files too
  trl-credit recipes path NAME             its file
"""


def main(argv: list[str]) -> int:
    """The exit code: 0, or 1 where nothing was found."""
    parser = OneLineParser(
        prog="trl-credit recipes", description=_HELP, formatter_class=RawDescriptionHelpFormatter, usage="%(prog)s …"
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="to search for, or show NAME, or path NAME")
    parser.add_argument("--resolved", action="store_true", help="with show: all settings, in one piece")
    try:
        args = parser.parse_args(argv)
        asks = args.words[:1] in (["show"], ["path"])
        if asks and len(args.words) != 2:
            raise ValueError(f"`{args.words[0]} NAME` takes the name of one recipe: `recipes` lists them")
        if args.resolved and not (asks and args.words[0] == "show"):
            raise ValueError("--resolved goes with `show NAME`")
        if not asks:
            return _list(args.words)
        row = _named(args.words[1])
        if args.words[0] == "path":
            if row.flags:
                raise ValueError(
                    f"{row.full_name!r} has no file of its own: `show` has its flags over {row.recipe.stem}"
                )
            print(row.recipe)
        else:
            print(_resolved(row) if args.resolved else _raw(row), end="")
    except BrokenPipeError:
        raise  # the reader of standard output has gone, which is no mistake
    except (ValueError, OSError) as error:
        fail(error, code=2)
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
        print(f"\nThose of {SFT}/ are for TRL: trl sft --config $(trl-credit recipes path NAME)")
    return 0


def _named(name: str) -> Recipe:
    row = find_recipe(name)
    if row is None:
        meant = meant_recipe(name)
        raise ValueError(
            f"there is no recipe {name!r}" + (f": did you mean {meant!r}?" if meant else ": `recipes` lists them")
        )
    return row


def _raw(row: Recipe) -> str:
    text = row.recipe.read_text(encoding="utf-8")
    if not row.flags:
        return text
    variant = {"base": row.recipe.name} | row.settings
    return f"# {row.folder}/{VARIANTS}\n" + _yaml(variant)


def _resolved(row: Recipe) -> str:
    settings, _ = read_settings([str(row.recipe)])
    return f"# {row.full_name}: {row.says}\n" + _yaml(settings | row.settings)


def _yaml(settings: dict) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100)
