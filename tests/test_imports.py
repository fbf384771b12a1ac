"""What imports what: which subpackage may import which, lazy public names, and what an import costs."""

import ast
import importlib
import io
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import trl_credit
from trl_credit import ALGORITHMS


PACKAGE, TESTS = Path(trl_credit.__file__).parent, Path(__file__).parent
EXAMPLE = TESTS.parent / "examples" / "train.py"
# from the lowest to the highest: a subpackage imports lower ones alone
SUBPACKAGES = (
    "support credit config demo rewards data loss presets passes rollouts runs observe hub trainer settings lab cli "
    "engines"
).split()
EXEMPT = {"__init__", "__main__", "testing"}  # modules of the root
TRL_PRIVATE = set(
    "_buffered_inputs _calculate_rewards _compute_loss _generate_and_score_completions _generate_single_turn "
    "_get_per_token_logps_and_entropies _prepare_inputs _tokenize_prompts".split()
)
TRL_KEYS = set(
    "completion_mask importance_sampling_ratio num_items_in_batch old_per_token_logps ref_per_token_logps "
    "sampling_per_token_logps tool_mask".split()
)
KEYS_MODULE = "loss.keys"  # the one module that names them


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    """ "loss.assignment" of trl_credit/loss/assignment.py, "loss" of its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in files(PACKAGE)}


def imported(name: str, node: ast.stmt) -> Iterator[str]:
    """Modules of the package that a statement of module `name` imports, wherever it stands in the module."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = f"{PACKAGE.name}.{name}".split(".")
        if MODULES[name].name == "__init__.py":
            above.append("__init__")
        base = [*above[: len(above) - node.level]] if node.level else []
        base += [node.module] if node.module else []
        targets = [".".join([*base, alias.name]) for alias in node.names]
    else:
        return
    for target in targets:
        root, *parts = target.split(".")
        # the longest part of the path that is a module: the rest is a name in it
        paths = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
        yield from [path for path in paths if root == PACKAGE.name and path in MODULES][:1]


@cache
def imports() -> dict[str, set[str]]:
    return {
        name: {target for node in ast.walk(tree(path)) for target in imported(name, node)} - {name}
        for name, path in MODULES.items()
        if name not in EXEMPT
    }


def subpackage(name: str) -> int:
    return SUBPACKAGES.index(name.partition(".")[0])


def test_every_module_is_in_a_subpackage_that_says_what_it_is():
    assert {name.partition(".")[0] for name in imports()} == set(SUBPACKAGES) <= set(MODULES)
    assert [name for name in SUBPACKAGES if not ast.get_docstring(tree(MODULES[name]))] == []


def test_imports_go_downwards():
    """Lazy imports and those for type checkers count."""
    assert sum(map(len, imports().values())) > 300  # the reader finds them
    assert "support.errors" in imports()["cli"] and "hub" in imports()["cli.training"]
    upwards = {(name, target) for name, targets in imports().items() for target in targets if target not in EXEMPT}
    assert sorted(f"{name} imports {target}" for name, target in upwards if subpackage(target) > subpackage(name)) == []


def test_nothing_imports_engines_and_only_the_modules_of_an_engine_import_it():
    of_engines = {name: targets for name, targets in imports().items() if name.startswith("engines")}
    assert [name for name in imports().keys() - of_engines.keys() for x in imports()[name] if x in of_engines] == []
    rooms = {target.partition(".")[0] for targets in of_engines.values() for target in targets}
    assert rooms == {"engines", "config", "credit", "loss", "presets", "support"}
    foreign = r"^\s*(?:from|import) (verl|ray|omegaconf|tensordict)\b"
    texts = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    assert [name for name, text in texts.items() if re.search(foreign, text, re.MULTILINE)] == [
        "engines.verl",
        "engines.verl_advantages",
    ]


def test_no_modules_import_each_other_in_a_circle():
    def reachable(start: str) -> set[str]:
        seen, to_do = set(), [start]
        while to_do:
            new = imports().get(to_do.pop(), set()) - seen
            seen |= new
            to_do += new
        return seen

    beyond = {name: reachable(name) for name in imports()}
    in_circles = [name for name in imports() if name in beyond[name]]
    circles = {tuple(x for x in in_circles if x in beyond[name] and name in beyond[x]) for name in in_circles}
    assert sorted(circles) == []


def constants_and_names(path: Path) -> tuple[set[str], set[str]]:
    """Texts of a file that are no docstrings, and names of its attributes, functions and classes."""
    docstrings = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
    texts, names = set(), set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            texts.add(node.value)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
    return texts, names


def test_private_methods_of_trl_are_named_in_the_trainer_and_in_runs_alone():
    by_module = {name: sorted(TRL_PRIVATE & set.union(*constants_and_names(MODULES[name]))) for name in imports()}
    assert {
        name: used for name, used in by_module.items() if used and name.split(".")[0] not in ("trainer", "runs")
    } == {}


def test_keys_of_trls_batches_are_named_in_one_module():
    by_module = {name: sorted(TRL_KEYS & constants_and_names(MODULES[name])[0]) for name in imports()}
    assert {name: used for name, used in by_module.items() if used and name != KEYS_MODULE} == {}


@pytest.mark.parametrize("folder", [PACKAGE, TESTS], ids=lambda folder: folder.name)
def test_no_file_is_longer_than_400_lines(folder):
    lengths = {str(path.relative_to(folder)): len(path.read_text("utf-8").splitlines()) for path in files(folder)}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


# What an import costs


def run(code: str) -> str:
    """The output of another Python. An assertion that fails there fails here."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow  # 10 s
def test_the_help_of_training_imports_no_trainer():
    code = f"""
import contextlib, io, runpy, sys
from trl_credit.cli import main

for call in (lambda: main(["train", "--help"]), lambda: runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")):
    sys.argv = ["train.py", "--algo", "opo", "--help", "all"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            call()
        except SystemExit as stop:
            assert stop.code == 0
    assert "--trace_lambda" in said.getvalue()
assert "--weight_decay" in said.getvalue() and "length-weighted" in said.getvalue()
print(sorted({{"trl.trainer.grpo_trainer", "trl_credit.trainer", "matplotlib", "vllm"}} & set(sys.modules)))
"""
    assert run(code) == "[]"


def test_importing_the_package_imports_neither_torch_nor_trl():
    code = "import sys, trl_credit, trl_credit.observe.schema; "  # rollout logs are read without torch
    code += "before = set(sys.modules); dir(trl_credit); trl_credit.__version__; "
    heavy = "{'torch', 'trl', 'transformers', 'accelerate', 'datasets'} & "
    code += f"hasattr(trl_credit, '__wrapped__'); print({heavy}set(sys.modules), set(sys.modules) - before); "
    code += "from trl_credit import Tokens, Credit; print('torch' in sys.modules, 'trl' in sys.modules)"
    assert run(code).splitlines() == ["set() set()", "True False"]


def test_credit_needs_torch_alone():
    modules = [name for name in imports() if name.startswith("credit.")]
    assert {"credit.tokens", "credit.weights", "credit.advantages"} <= set(modules)
    run(f"""
import importlib, sys
for name in ("trl", "transformers", "accelerate", "vllm", "datasets", "peft", "huggingface_hub", "yaml"):
    sys.modules[name] = None  # so that importing it fails
import torch
for name in {modules}:
    importlib.import_module("trl_credit." + name)
""")


# Public names


def test_every_public_name_is_there():
    namespace: dict = {}
    exec("from trl_credit import *", namespace)
    assert set(trl_credit.__all__) <= set(namespace) and set(trl_credit.__all__) <= set(dir(trl_credit))
    assert run("import trl_credit; print(trl_credit.support.__name__)") == "trl_credit.support"  # a subpackage, lazily


def test_editors_are_told_every_name():
    """They read the stub, and run nothing."""
    body = tree(PACKAGE / "__init__.pyi").body
    (public,) = [ast.literal_eval(x.value) for x in body if isinstance(x, ast.Assign) and x.targets[0].id == "__all__"]
    told = set()
    for node in body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(f"trl_credit.{node.module}")
            for alias in node.names:
                assert getattr(module, alias.name) is getattr(trl_credit, alias.name)
                told.add(alias.name)
        if isinstance(node, ast.ClassDef):  # a named trainer, which is made of its preset
            assert getattr(trl_credit, node.name).__bases__ == (getattr(trl_credit, node.bases[0].id),)
            told.add(node.name)
    assert {one.__name__ for pair in ALGORITHMS.values() for one in pair} <= told
    assert told == set(public) == set(trl_credit.__all__) and len(public) == len(told)


# Saved configurations


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_configuration_comes_back_from_pickle_and_torch(algo, tmp_path):
    args = ALGORITHMS[algo][0](output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    buffer = io.BytesIO()
    torch.save(args, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(args)), torch.load(buffer, weights_only=False)):
        assert type(again) is type(args) and again.to_dict() == args.to_dict()
