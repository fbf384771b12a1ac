"""Files that travel with the package: recipes, configurations of accelerate, pages, examples. Imports no torch."""

from pathlib import Path
from typing import Any

import yaml

from .errors import choose, one_line


def packaged_folder(name: str) -> Path:
    """The folder "accelerate_configs", "docs", "examples" or "recipes" of this installation.

    Raises:
        ValueError: the installation lacks it.
    """
    package = Path(__file__).parents[1]
    # in a checkout, also one that is installed by `pip install -e`; a wheel has them in `share/` (setup.py)
    places = (package / "share" / name, package.parent / ("examples/recipes" if name == "recipes" else name))
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(f"there is no folder {str(places[0])!r}: reinstall the package, pip install trl-credit")


def accelerate_config(name: str) -> Path:
    """The configuration of accelerate that `name` means: a file, or one of the package, such as "zero3".

    Raises:
        ValueError: there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    known = {path.stem: path for path in sorted(packaged_folder("accelerate_configs").glob("*.yaml"))}
    if name not in known:
        raise ValueError(f"--accelerate_config {name!r} is neither a file nor a name{choose(name, known)}")
    return known[name]


def accelerate_settings(name: str) -> dict[str, Any]:
    """The settings in such a configuration. Raises `ValueError` if it is no mapping in YAML."""
    text = accelerate_config(name).read_text(encoding="utf-8")
    try:
        return dict(yaml.safe_load(text) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"--accelerate_config {name!r} is no mapping in YAML: {one_line(error)}") from error
