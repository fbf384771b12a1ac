"""`helper_modules`: which modules of the user's a function needs, without importing any."""

import functools
import importlib
import subprocess
import sys

import pytest

from trl_credit.support.modules import helper_modules


FILES = {
    "entry.py": "import json, torch, trl_credit, lib.first as first\nfrom dynamic import *\n"
    "def score(x):\n    from lib import lazy\n    return x\n"
    "class Judge:\n    def __call__(self, x):\n        return x\n",
    "lib/__init__.py": "",
    "lib/first.py": "from . import second\nfrom .deep.third import value\nfrom ..outside import nothing\n",
    "lib/second.py": "import entry\n",  # in a circle
    "lib/deep/__init__.py": "",
    "lib/deep/third.py": "value = 1\n",
    "lib/lazy.py": "import no_such_module\nraise RuntimeError('is never run')\n",
    "dynamic.py": "import importlib\nfound = importlib.import_module('by_' + 'name').found\n",
    "by_name.py": "def found():\n    pass\n",
    "unused.py": "",
    "broken.py": "def (\n",
}
OF_ENTRY = {"lib", "lib.first", "lib.second", "lib.deep", "lib.deep.third", "lib.lazy", "dynamic", "by_name"}


@pytest.fixture
def entry(tmp_path, monkeypatch):
    before = set(sys.modules)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        # what the import below runs has no parent package
        (tmp_path / name).write_text(text.replace("from ..outside", "if False: from ..outside"))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("entry")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_imports_are_followed_also_those_inside_functions(entry):
    found = helper_modules(entry.score)
    assert set(found) == OF_ENTRY and "lib.lazy" not in sys.modules
    assert helper_modules(entry.Judge()) == helper_modules(functools.partial(entry.score, 1)) == found


@pytest.mark.parametrize("name", sorted(OF_ENTRY))
def test_a_change_of_any_of_them_is_seen(entry, tmp_path, name):
    before = helper_modules(entry.score)
    file = tmp_path / f"{name.replace('.', '/')}.py"
    file = file if file.is_file() else file.with_suffix("") / "__init__.py"
    file.write_text(file.read_text() + "# another\n")
    after = helper_modules(entry.score)
    assert [module for module in before if before[module] != after[module]] == [name]


def test_a_helper_that_is_not_python_has_a_digest_and_no_imports(entry, tmp_path):
    (tmp_path / "dynamic.py").write_text("import broken\n")
    assert "broken" in helper_modules(entry.score)


def test_functions_that_are_bound_or_captured_bring_their_modules(entry):
    def reward(x, score=None):
        return x

    def captures():
        return entry

    assert set(helper_modules(functools.partial(reward, score=entry.score))) >= {"entry", *OF_ENTRY}
    assert set(helper_modules(captures)) >= {"entry", *OF_ENTRY}
    assert not any(name.partition(".")[0] in ("torch", "trl_credit", "pytest") for name in helper_modules(captures))


SCRIPT = """
import settings, helper
from trl_credit.support.modules import helper_modules

def part(text):
    import lazy
    return helper.score(text)

def reward(completions):
    return [part(text) for text in completions]

def other(completions):
    return [settings.VALUE for _ in completions]

print(*sorted(helper_modules(reward)), "/", *sorted(helper_modules(other)))
"""


def test_of_a_script_only_what_the_function_refers_to_counts(tmp_path):
    """A run that resumes with other settings in a module of the script has the same reward."""
    for name, text in (
        ("settings", "VALUE = 1"),
        ("helper", "from below import score"),
        ("lazy", ""),
        ("main", SCRIPT),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "below.py").write_text("def score(text):\n    return 1.0\n")
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "below helper lazy / settings"
