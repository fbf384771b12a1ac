"""Prints the README's table of algorithms; `--write` brings what is derived from their files up to date."""

import argparse

from .table import PACKAGE, derived, readme_table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trl_credit.algorithms", description=__doc__)
    parser.add_argument("--write", action="store_true", help="Into README.md and trl_credit/__init__.py of a checkout.")
    if not parser.parse_args().write:
        print(readme_table())
        return
    paths = (PACKAGE.parent / "README.md", PACKAGE / "__init__.py")
    if not paths[0].is_file():
        parser.error(f"there is no README.md in {str(PACKAGE.parent)!r}: --write is for a checkout")
    old = [path.read_text(encoding="utf-8") for path in paths]
    for path, before, after in zip(paths, old, derived(*old), strict=True):
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.name}")


if __name__ == "__main__":
    main()
