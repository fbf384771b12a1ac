"""`helper_modules`: which modules of the user's count as part of a function."""

import functools
import importlib
import math
import sys

import pytest
import torch

from trl_credit.demo import demo_reward
from trl_credit.support.modules import digest_of_module, helper_modules


FILES = {
    "entry.py": "import json, torch, trl_credit, helper\nfrom lib.constants import VALUE\n"
    "def score(x):\n    from lib import late\n    return x\n",
    "helper.py": "",
    "lib/__init__.py": "",
    "lib/constants.py": "VALUE = 1\n",
    "lib/late.py": "def function():\n    pass\n",
    "unused.py": "",
    "site-packages/installed.py": "",
}
LOADED = {"helper", "lib", "lib.constants"}


@pytest.fixture
def entry(tmp_path, monkeypatch):
    before = set(sys.modules)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("installed")
    yield importlib.import_module("entry")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_loaded_modules_beside_the_function_count(entry):
    assert helper_modules([entry.score]).keys() == LOADED
    assert helper_modules([functools.partial(entry.score, 1)]).keys() == LOADED
    entry.score(1)
    assert helper_modules([entry.score]).keys() == {*LOADED, "lib.late"}
    # of a function in a package, those beside the package count
    assert helper_modules([sys.modules["lib.late"].function]).keys() == {*LOADED, "entry"}
    assert helper_modules([math.sqrt, torch.relu, demo_reward]) == {}


def test_a_notebook_has_the_modules_of_its_folder(entry, here, monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    typed: dict = {"__name__": "__main__"}
    exec("def reward():\n    pass", typed)
    assert helper_modules([typed["reward"]]).keys() == {*LOADED, "entry"}


@pytest.mark.parametrize("file", ["helper.py", "lib/__init__.py", "lib/late.py"])
def test_a_change_of_a_file_is_seen_without_an_import(entry, tmp_path, file):
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    before, digest = helper_modules([entry.score]), digest_of_module(name)
    (tmp_path / file).write_text("# another\n")
    after = helper_modules([entry.score])
    assert [module for module in before if before[module] != after[module]] == [name] * (name in LOADED)
    assert digest_of_module(name) not in (None, digest) and "lib.late" not in sys.modules
