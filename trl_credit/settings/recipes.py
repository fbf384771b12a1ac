"""Recipes by name: the rows of the papers' tables, each a YAML file or flags over one. Imports no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import yaml

from ..support.errors import closest, spelling
from ..support.packaged import packaged_folder


VARIANTS = "variants.yaml"
SFT = "sft"  # the folder whose files are for `trl sft`


@dataclass(frozen=True)
class Recipe:
    """One run: its name in its folder, the file it starts from, the flags over it, and its description."""

    folder: str
    name: str
    recipe: Path
    flags: dict[str, Any]
    about: dict[str, Any]

    @property
    def full_name(self) -> str:
        """ "s_trace/qwen3_4b_s_trace", as `--config` takes it."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def settings(self) -> dict[str, Any]:
        """The flags, with the output folder if there are any."""
        return self.flags and self.flags | {"output_dir": f"runs/{self.folder}/{self.name}"}

    @property
    def says(self) -> str:
        """What it is for, in a sentence or two."""
        if self.flags:
            return f"{self.recipe.stem} with " + ", ".join(f"{name} {value}" for name, value in self.flags.items())
        if "what" in self.about:
            return self.about["what"]
        comment = re.match(r"(?:#.*\n)*", self.recipe.read_text(encoding="utf-8"))[0]
        first = " ".join(re.sub(r"^# ?", "", comment, flags=re.MULTILINE).split())
        return re.split(r"(?<!App)[.:] ", first)[0].rstrip(".:")


def recipes_in(folder: Path) -> list[Recipe]:
    """The recipes of a folder by name, each followed by its variants."""
    files = [path for path in sorted(folder.glob("*.yaml")) if not path.name.startswith("base")]
    parts = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    variants = parts.pop(Path(VARIANTS).stem, {})
    recipes = []
    for base, settings in parts.items():
        path, about = folder / f"{base}.yaml", settings.get("about", {})
        recipes.append(Recipe(folder.name, base, path, {}, about))
        for name, variant in variants.items():
            if variant["base"] == base:
                inherited = {key: value for key, value in about.items() if key not in ("note", "measured")}
                own = {key: value for key, value in variant.items() if key not in ("base", "flags")}
                recipes.append(Recipe(folder.name, name, path, variant["flags"], inherited | own))
    return recipes


@cache
def all_recipes() -> dict[str, Recipe]:
    """Every recipe of this installation by its full name."""
    root = packaged_folder("recipes")
    alone = [Recipe("", path.stem, path, {}, {}) for path in sorted(root.glob("*.yaml"))]
    rows = [row for folder in sorted(filter(Path.is_dir, root.iterdir())) for row in recipes_in(folder)]
    return {row.full_name: row for row in [*alone, *rows]}


def find_recipe(name: str) -> Recipe | None:
    """The recipe of that name, "s_trace/qwen3_4b_s_trace"; `None` if there is none."""
    return all_recipes().get(name.removesuffix(".yaml"))


def meant_recipe(name: str) -> str | None:
    """The name meant by a wrong one: of those with all words of its last part, first the same in another folder, then
    by folder and by the part itself; else the closest. `None` if none is close."""
    path = PurePath(name.removesuffix(".yaml"))
    words, spelled = re.split(r"[\W_]+", path.name.lower()), spelling(path.name)

    def rank(row: Recipe) -> tuple[Any, ...]:
        places = row.name != path.name, row.folder == SFT, spelling(row.folder) not in spelling(str(path))
        return *places, spelled not in spelling(row.name), bool(row.flags), len(row.full_name)

    rows = [row for row in all_recipes().values() if all(word in spelling(row.full_name) for word in words)]
    return min(rows, key=rank).full_name if rows and len(spelled) > 2 else closest(str(path), all_recipes())


def search(words: Sequence[str]) -> list[Recipe]:
    """The recipes whose name, description, note or settings contain all of `words`, ignoring case."""

    def text(row: Recipe) -> str:
        yaml_text = row.recipe.read_text(encoding="utf-8")
        return f"{row.full_name} {row.says} {row.about.get('note', '')} {yaml_text}".lower()

    return [row for row in all_recipes().values() if all(word.lower() in text(row) for word in words)]
