"""What pyproject.toml cannot express: packaged files that lie elsewhere in a checkout, and links of the README."""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


ROOT = Path(__file__).resolve().parent
# name → folder and files, copied to trl_credit/share/name in a wheel; a checkout reads them from here
# (trl_credit/support/packaged.py)
SHARED = {
    "accelerate_configs": (ROOT / "accelerate_configs", "**/*.yaml"),
    "docs": (ROOT / "docs", "*.md"),
    "docs/algorithms": (ROOT / "docs" / "algorithms", "*.md"),
    "examples/algorithms": (ROOT / "examples" / "algorithms", "*.py"),
    "examples/sums": (ROOT / "examples" / "sums", "*.*"),
    "examples/verifiers_rollouts": (ROOT / "examples" / "verifiers_rollouts", "*.*"),
    "examples/notebooks": (ROOT / "examples" / "notebooks", "*.*"),
    "recipes": (ROOT / "examples" / "recipes", "**/*.yaml"),
}


class BuildWithShared(build_py):
    """Copies the files of `SHARED` into the build."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name, (folder, pattern) in SHARED.items():
            target = Path(self.build_lib) / "trl_credit" / "share" / name
            shutil.rmtree(target, ignore_errors=True)  # files of an earlier build
            for path in folder.glob(pattern):
                copy = target / path.relative_to(folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def repository() -> str | None:
    """The project's address: `Repository` of `[project.urls]` in pyproject.toml, or `None` while it has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def readme(text: str, repository: str | None) -> str:
    """README.md for a package index, which has no files beside it. Links to files lead to the repository, or become
    plain text without one."""

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        if repository is None:
            return "" if image else words
        return f"{image}[{words}]({repository.rstrip('/')}/{'raw' if image else 'blob'}/main/{target})"

    if repository is None:  # nor captions of pictures
        text = re.sub(r"!\[[^\]]*\]\([^)\s]+\)\n\n\*\([^\n]*\)\*\n\n", "", text)
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithShared},
        # a path and not a hook: a hook is asked after the current folder, and a script beside a checkout that is called
        # trl_credit would import that folder
        options={"editable_wheel": {"mode": "compat"}},
        long_description=readme((ROOT / "README.md").read_text(encoding="utf-8"), repository()),
        long_description_content_type="text/markdown",
    )
