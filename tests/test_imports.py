"""What an import costs, which names it gives, and what was saved under them."""

import ast
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trl_credit
from trl_credit import ALGORITHMS


PACKAGE = Path(trl_credit.__file__).parent
SAVED_BY_0_1 = Path(__file__).parent / "data" / "training_args_0.1.bin"


def run(code: str) -> str:
    """What another Python prints. An assertion that fails there fails here."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_trl():
    code = "import sys, trl_credit; before = set(sys.modules); dir(trl_credit); trl_credit.__version__; "
    heavy = "{'torch', 'trl', 'transformers', 'accelerate', 'datasets'} & "
    code += f"hasattr(trl_credit, '__wrapped__'); print({heavy}set(sys.modules), set(sys.modules) - before)"
    assert run(code) == "set() set()"
    code = "import sys; from trl_credit import Tokens, Credit; print('torch' in sys.modules, 'trl' in sys.modules)"
    assert run(code) == "True False"


def test_credit_needs_torch_alone():
    modules = sorted(path.stem for path in (PACKAGE / "credit").glob("*.py") if path.stem != "__init__")
    assert {"tokens", "weights", "advantages"} <= set(modules)
    code = f"""
import importlib, sys
for name in ("trl", "transformers", "accelerate", "vllm", "datasets", "peft", "huggingface_hub", "yaml"):
    sys.modules[name] = None  # so that importing it fails
import torch
for name in {modules}:
    importlib.import_module("trl_credit.credit." + name)
from trl_credit.credit.advantages import group_advantage
from trl_credit.credit.weights import eligible_log_weight
logp_t = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
weight = eligible_log_weight(logp_t, old_logp_t=logp_t.detach(), decay=0.5, mask_t=torch.ones(1, 3))
weight[0, 2].backward()
print(logp_t.grad.tolist(), group_advantage(torch.tensor([0.0, 1.0]), num_generations=2, scale=False).tolist())
"""
    assert run(code) == "[[0.25, 0.5, 1.0]] [-0.5, 0.5]"


def test_submodules_are_there_without_being_imported():
    code = """
import trl_credit
print(trl_credit.demo.DEMO_SETTINGS["num_generations"], trl_credit.rewards.functions.__name__)
print(trl_credit.judging is trl_credit.rewards.judging)  # by its former name
from trl_credit import rewards, data_cleaning
print(rewards.__name__, data_cleaning.__name__)
"""
    expected = ["8 trl_credit.rewards.functions", "True", "trl_credit.rewards trl_credit.data.cleaning"]
    assert run(code).splitlines() == expected


def test_every_public_name_is_there():
    given: dict = {}
    exec("from trl_credit import *", given)
    assert set(trl_credit.__all__) <= set(given) and set(trl_credit.__all__) <= set(dir(trl_credit))
    for config_class, trainer_class in ALGORITHMS.values():
        for found in (config_class, trainer_class):
            assert given[found.__name__] is getattr(trl_credit.algorithms, found.__name__) is found
    assert given["assign_credit"] is trl_credit.assignment.assign_credit
    assert given["Credit"] is trl_credit.credit.tokens.Credit and given["Tokens"] is trl_credit.credit.tokens.Tokens
    assert given["CreditTrainer"] is trl_credit.trainer.CreditTrainer


@pytest.mark.parametrize("name", ["no_such", "NoSuchConfig", "__wrapped__", "_private"])
def test_other_names_are_not(name):
    assert not hasattr(trl_credit, name) and not hasattr(trl_credit.algorithms, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from trl_credit import {name}")


def test_editors_are_told_every_name():
    """They read what stands under `TYPE_CHECKING`, and `__all__`, and run nothing."""
    told, public = set(), None
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                module = __import__(f"trl_credit.{line.module}", fromlist=["*"])
                for name in line.names:
                    assert getattr(module, name.name) is getattr(trl_credit, name.name)
                    told.add(name.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = ast.literal_eval(node.value)
    classes = {found.__name__ for pair in ALGORITHMS.values() for found in pair}
    assert classes <= told, "python -m trl_credit.algorithms --write"
    assert told == set(public) == set(trl_credit.__all__) and len(public) == len(told)


def test_the_citations_are_where_they_were():
    from trl_credit.algorithms import papers

    assert papers.S_TRACE is trl_credit.STraceTrainer._paper and papers.SPO is trl_credit.SPOTreeTrainer._paper
    for name in ("GRPO", "DAPO", "DR_GRPO", "GRPO_LAMBDA", "GSPO", "HA_DW", "OPO", "VINE_PPO"):
        assert getattr(papers, name) is ALGORITHMS[name.lower()][1]._paper
    assert not hasattr(papers, "NO_SUCH")


# What was saved


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_configuration_comes_back_from_pickle_and_torch(algo, tmp_path):
    args = ALGORITHMS[algo][0](output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    buffer = io.BytesIO()
    torch.save(args, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(args)), torch.load(buffer, weights_only=False)):
        assert type(again) is type(args) and again.to_dict() == args.to_dict()


def test_another_process_reads_them_with_torch_alone(tmp_path):
    args = ALGORITHMS["p_trace"][0](output_dir="x", use_cpu=True, bf16=False, report_to="none", trace_lambda=0.5)
    torch.save(args, tmp_path / "training_args.bin")
    files = [str(tmp_path / "training_args.bin"), str(SAVED_BY_0_1)]
    code = f"import torch; files = [torch.load(file, weights_only=False) for file in {files}]; "
    code += "print(*((type(args).__name__, args.trace_lambda) for args in files))"
    assert run(code) == "('PTraceConfig', 0.5) ('STraceConfig', 0.9)"


def test_the_arguments_that_version_0_1_saved_are_read():
    args = torch.load(SAVED_BY_0_1, weights_only=False)
    assert type(args) is trl_credit.STraceConfig and args.output_dir == "x"
    assert (args.selector, args.importance, args.trace_decay) == ("entropy", "eligible", 0.9)
    assert "credit" not in vars(args) and args.credit is None  # a field that it did not have
    assert args.own_functions() == {}


def test_a_module_of_a_moved_package_is_there_once():
    import trl_credit.judging.equal
    from trl_credit.rewards.judging import equal

    assert trl_credit.judging.equal is equal
