"""Whether an sdist is complete, and the wheel built from it equals the one built from the tree.

python .ci/compare_builds.py TREE SDIST WHEEL_FROM_SDIST WHEEL_FROM_TREE
"""

import sys
import tarfile
import zipfile
from pathlib import Path


# what a reader, a packager and the tests need, beside the package
FOLDERS = ("trl_credit", "accelerate_configs", "benchmarks", "docs", "examples", "tests")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md")
FILES += ("pyproject.toml", "setup.py", "mkdocs.yml")


def in_sdist(path: Path) -> set[str]:
    """The names of the files of an sdist, without its folder."""
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def in_tree(tree: Path) -> set[str]:
    """The names of the files that an sdist should have."""
    found = {name for name in FILES if (tree / name).is_file()}
    for folder in FOLDERS:
        files = (path.relative_to(tree) for path in (tree / folder).rglob("*") if path.is_file())
        found |= {path.as_posix() for path in files if not {"__pycache__", "share"} & {*path.parts}}
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def problems(tree: Path, sdist: Path, one: Path, other: Path) -> list[str]:
    """A line for everything that is missing or differs."""
    listed, wanted = in_sdist(sdist), in_tree(tree)
    generated = ("trl_credit.egg-info/", "PKG-INFO", "setup.cfg")
    found = [f"the sdist lacks {name}" for name in sorted(wanted - listed)]
    found += [f"the sdist has {name}" for name in sorted(listed - wanted) if not name.startswith(generated)]
    a, b = contents(one), contents(other)
    found += [f"one wheel alone has {name}" for name in sorted(a.keys() ^ b.keys())]
    found += [f"the wheels differ in {name}" for name in sorted(a.keys() & b.keys()) if a[name] != b[name]]
    return found


if __name__ == "__main__":
    said = problems(*map(Path, sys.argv[1:]))
    print("\n".join(said) or "the sdist is complete, and both wheels are equal")
    sys.exit(bool(said))
