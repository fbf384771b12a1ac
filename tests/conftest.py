"""A tiny random model with its tokenizer, and trainers on it."""

import os
import tempfile


# the tests start hundreds of processes, each of which would compile the package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# before torch is imported: tensors this small are faster on one thread, and much faster where cores are shared
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# under pytest-xdist several tests start processes at once: each worker has a port of its own, none of
# them 29500, which accelerate's launcher takes
os.environ["MASTER_PORT"] = str(29510 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))

# trackio, which TRL imports where it is installed, reads its folder then
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")

import gc
import importlib.util
import json
import shutil
import signal
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path

import huggingface_hub
import pytest
import torch
import trl
from datasets import Dataset
from hub_server import HubServer
from huggingface_hub.utils import close_session
from hypothesis import HealthCheck, settings
from quick_libraries import LOADED_ONCE, make_quick
from tiny_models import CHARACTERS, tiny_qwen3
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from warm_start import make_tokenizer

import trl_credit
from trl_credit.config import active_part
from trl_credit.config import defaults as knob_defaults
from trl_credit.credit.tokens import BatchTokens
from trl_credit.demo import demo_model_path
from trl_credit.lab.evaluation.samplers import TransformersSampler
from trl_credit.loss.statistics import over_processes
from trl_credit.rewards import limits


# without a deadline, since a busy machine must not fail a test
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


make_quick()

EXTRACTS = Path(__file__).parent / "data"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"  # whole data sets, where they are beside the clone
# configuration and trainer by the name that `make_trainer` takes
PAIRS = {**trl_credit.ALGORITHMS, "base": (trl_credit.CreditConfig, trl_credit.CreditTrainer)}


@dataclass(frozen=True)
class DataFolder:
    """A folder with a file for each data set: whole sets, or the extracts of tests/data/README.md."""

    path: Path
    whole: bool

    def rows(self, name: str) -> list[dict]:
        with (self.path / f"{name}.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        for item in items:
            if item.get_closest_marker("deepspeed"):
                item.add_marker(pytest.mark.skip(reason="DeepSpeed is not installed"))


def pytest_collection_finish() -> None:
    """What is imported by now stays: Python need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
    shutil.rmtree(os.environ["TRACKIO_DIR"])


# the extracts always, so that what a clone alone runs is not first run in one
@pytest.fixture(params=["extract", *(["whole"] if SHARED.is_dir() else [])])
def data_folder(request) -> DataFolder:
    whole = request.param == "whole"
    return DataFolder(SHARED if whole else EXTRACTS, whole)


@pytest.fixture(autouse=True)
def signals_are_given_back():
    """A test that starts a command in this process leaves no handler that would end the next one's."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a machine that stands still for seconds, the process of the tests must not be killed."""
    monkeypatch.setattr(limits, "GRACE", 120.0)


@pytest.fixture(autouse=True)
def no_deepspeed_configuration_is_left():
    """transformers keeps the last DeepSpeed configuration, also a refused one that is only half built."""
    yield
    unset_hf_deepspeed_config()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The folder of a test, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def sampler() -> TransformersSampler:
    """Of the embedded model."""
    model = AutoModelForCausalLM.from_pretrained(demo_model_path()).eval()
    return TransformersSampler(model, AutoTokenizer.from_pretrained(demo_model_path()))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Folder of a random Qwen3 with 2 layers and a tokenizer of single characters."""
    path = str(tmp_path_factory.mktemp("tiny"))
    tokenizer = make_tokenizer(CHARACTERS)
    tokenizer.save_pretrained(path)
    tiny_qwen3(tokenizer).save_pretrained(path)
    LOADED_ONCE.add(path)
    return path


def count_a(completions: list[str], **kwargs) -> list[float]:
    """A reward with signal for a random model: share of the first four characters that are 'a', 'b' or 'c'."""
    return [sum(c in "abc" for c in text[:4]) / 4 for text in completions]


@cache
def sums(n_prompts: int) -> Dataset:
    prompts = [f"{i % 10}+{i // 10 % 10}=" for i in range(n_prompts)]
    return Dataset.from_dict({"prompt": prompts, "answer": [str(i) for i in range(n_prompts)]})


def build_trainer(model, folder, algo="base", *, reward_funcs=count_a, n_prompts=64, trainer_kwargs=None, **settings):
    config_class, trainer_class = PAIRS[algo] if isinstance(algo, str) else algo
    defaults = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    defaults |= {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8}
    defaults |= {"learning_rate": 1e-3, "max_steps": 2, "logging_steps": 1, "save_strategy": "no"}
    if issubclass(config_class, trl_credit.CreditConfig):
        small = {"tree_branching": [2, 2, 2], "tree_segment_length": 2}
        defaults |= active_part(small, {**knob_defaults(config_class), **small, **settings})
    arguments = {"model": model, "reward_funcs": reward_funcs, "train_dataset": sums(n_prompts)}
    return trainer_class(**{**arguments, "args": config_class(**defaults | settings), **(trainer_kwargs or {})})


@pytest.fixture
def make_trainer(tiny_model, tmp_path):
    """Builds a trainer: `make_trainer("s_trace", beta=0.0, …)`, or of a class given in place of the name."""

    def make(*args, **settings):
        trainer = build_trainer(tiny_model, tmp_path / "run", *args, **settings)
        if hasattr(trainer, "results"):
            trainer.results.writes_at_end = False  # which takes longer than most of these trainings
        return trainer

    return make


@dataclass(frozen=True)
class FinishedRun:
    """A training that ended, with all that it wrote."""

    trainer: trl.GRPOTrainer
    folder: Path
    console: str


@pytest.fixture(scope="session")
def finished_run(tiny_model, tmp_path_factory):
    """`finished_run("s_trace", max_steps=2)`: trained once in a session, for all tests that only read it.

    A test that writes into the folder copies it first. The settings are those of `make_trainer` and must be hashable.
    """

    @cache
    def make(algo: str = "base", **settings) -> FinishedRun:
        folder = tmp_path_factory.mktemp(f"run_{algo}") / "run"
        with redirect_stdout(StringIO()) as console:
            trainer = build_trainer(tiny_model, folder, algo, **settings)
            trainer.train()
            trainer.save_model()
        return FinishedRun(trainer, folder, console.getvalue())

    return make


@pytest.fixture
def trained(make_trainer):
    """What `make_trainer` builds, after its training. `resume`: the checkpoint it goes on from."""

    def train(*args, resume=None, **settings):
        trainer = make_trainer(*args, **settings)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


@pytest.fixture
def command_said(capsys):
    """Runs a part of `trl-credit` in this process: exit code, standard output, standard error."""

    def run(*argv: object) -> tuple[int, str, str]:
        from trl_credit import cli as commands

        capsys.readouterr()
        try:
            code = commands.main([*map(str, argv)])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def plan_said(command_said):
    """Runs `trl-credit plan`."""
    return partial(command_said, "plan")


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process may talk to although the tests run offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    close_session()  # which remembers proxies
    with HubServer() as server:
        yield server
    close_session()


@pytest.fixture
def own_hub(hub, monkeypatch):
    """The same for commands, as the Hub of the environment."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    return hub


@pytest.fixture
def toy_loss(monkeypatch):
    """Runs toy log-probabilities through the real `_compute_loss`: only the forward pass is given."""

    def run(trainer, inputs, *, logps, entropies):
        given = (logps, entropies, None)
        monkeypatch.setattr(trl.GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *args, **kwargs: given)
        trainer.current_gradient_accumulation_steps = 1
        contract = getattr(trainer, "contract", None)  # a trainer of TRL has none
        if contract is not None and contract.algorithm.statistics is not None:
            taken = over_processes(contract.algorithm, trainer.args, trainer.processes, batch_of(inputs))
            inputs = {"batch_statistics": taken, **inputs}  # as the trainer's step, which is not run here
        if contract is not None and "teacher" in contract.algorithm.needs:
            inputs = {"teacher_per_token_logps": logps.detach() - 0.3, **inputs}
        return trainer.compute_loss(trainer.model, inputs)

    return run


def batch_of(inputs: dict) -> BatchTokens:
    """A batch of TRL's shape, in which no row has turns, segments or a group."""
    mask_t = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    whole = torch.where(mask_t.bool(), 0, -1)
    parts = {"token_ids": inputs["completion_ids"], "segment_ids": whole, "turn_ids": whole, "mask_t": mask_t}
    parts |= {"group_ids": torch.arange(len(mask_t)), "logp_t": inputs["old_per_token_logps"]}
    return BatchTokens(**parts, advantage_t=inputs["advantages"], generator=torch.Generator().manual_seed(0))


def toy_inputs(mask: torch.Tensor, **tensors) -> dict:
    """A dict of the shape TRL makes, for completions of which `mask` (B, T) are the loss tokens."""
    batch, length = mask.shape
    prompts = {name: torch.ones(batch, 2, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    completions = dict.fromkeys(("completion_ids", "completion_mask"), torch.ones(batch, length, dtype=torch.long))
    return {**prompts, **completions, "tool_mask": mask, "num_items_in_batch": mask.sum(), **tensors}
