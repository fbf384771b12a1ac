"""Every layout of processes gives the same parameters and metrics after three steps, and every accelerate file starts.

The reference is one process. DeepSpeed runs where it is installed; CI installs it.
"""

import functools
import json
from pathlib import Path

import pytest
import torch
import yaml
from processes import CONFIGS, accelerate, on_cpus, run
from run_layouts import CASES
from run_layouts import run as run_case
from safetensors.torch import load_file

from trl_credit.demo import demo_model_path


pytestmark = pytest.mark.slow


LAYOUTS = {
    "one": (None, 8, 1),
    "accumulation": (None, 1, 8),
    "ddp": ("cpu_2proc", 4, 1),
    "ddp_windows": ("cpu_2proc", 2, 2),  # each process sorts its own rows
    "fsdp2": ("fsdp2", 4, 1),
    "zero2": ("zero2", 4, 1),
    "zero3": ("cpu_zero3", 4, 1),
}


def with_marks(*layouts: str) -> list:
    return [pytest.param(x, marks=pytest.mark.deepspeed if "zero" in x else ()) for x in layouts]


@pytest.fixture(scope="module")
def of_layout(tmp_path_factory):
    """The folder with the results of a layout, which runs once."""

    @functools.cache
    def make(layout: str) -> Path:
        folder, (name, *sizes) = tmp_path_factory.mktemp(layout), LAYOUTS[layout]
        if name is not None:
            run(*accelerate(name, folder), "run_layouts.py", folder, *sizes)
        for case in CASES if name is None else ():
            run_case(case, folder, *sizes)
        return folder

    return make


@pytest.mark.parametrize("layout", with_marks(*LAYOUTS)[1:])
def test_every_layout_of_processes_gives_one_answer(of_layout, layout):
    one, folder = of_layout("one"), of_layout(layout)
    before = load_file(Path(demo_model_path()) / "model.safetensors")
    for case in CASES.keys() - {"nonfinite"}:
        file = f"{'adapter_' * (case == 'adapter')}model.safetensors"
        reference, weights = (load_file(p / case / file) for p in (one, folder))
        started = before if case != "adapter" else load_file(one / case / "started.safetensors")
        moved = max((started[key].float() - p.float()).abs().max().item() for key, p in reference.items())
        assert moved > 1e-3  # a thousand times the tolerance between layouts
        assert set(reference) <= set(weights)  # DeepSpeed adds the tied head
        for key, value in reference.items():
            torch.testing.assert_close(weights[key].float(), value.float(), rtol=0, atol=1e-6, msg=f"{case}: {key}")
        logs = [json.loads((p / case / "rank0.json").read_text())["log"] for p in (one, folder)]
        for left, right in zip(*logs, strict=True):
            for metric in ("reward", "reward_std", "completions/mean_length", "loss", "grad_norm"):
                assert right[metric] == pytest.approx(left[metric], rel=1e-4, abs=2e-6), (case, metric)
        if LAYOUTS[layout][0] is not None and case == "opo":  # in some step only one process had something to train on
            idle = [json.loads((folder / case / f"rank{r}.json").read_text())["idle"] for r in range(2)]
            assert any(a != b for a, b in zip(*idle, strict=True))


@pytest.mark.parametrize("layout", with_marks("ddp", "fsdp2", "zero3"))
def test_a_loss_that_is_not_finite_on_one_process_is_skipped_on_all(of_layout, layout):
    folder = of_layout(layout) / "nonfinite"
    for rank in range(2):
        log = json.loads((folder / f"rank{rank}.json").read_text())["log"]
        assert [row["credit/skipped_updates"] for row in log] == [0.0, 1.0, 0.0, 0.0]
        assert all(row["grad_norm"] > 0 for row in log[2:])  # training continues
    assert all(p.isfinite().all() for p in load_file(folder / "model.safetensors").values())


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["zero2", "cpu_zero3"])
def test_deepspeed_looks_at_losses_once_per_window(tmp_path, name):
    run(*accelerate(name, tmp_path), "run_nonfinite.py", tmp_path)
    for rank in range(2):
        cases = json.loads((tmp_path / f"rank{rank}.json").read_text())
        for case, window in {"clean": 4, "first": 4, "middle": 4, "last": 4, "cut": 2, "first_of_cut": 2}.items():
            run_of = cases[case]
            ends = [False, False, False, True] + [False] * (window - 1) + [True]
            assert run_of["ends"] == ends, case
            assert run_of["collectives"] == [int(is_end) for is_end in ends], case  # beside those of TRL
            if case in ("clean", "cut"):
                assert (run_of["error"], run_of["updates"], run_of["moved"]) == (None, 2, True)
            else:
                assert "the loss is not finite" in run_of["error"] and "checkpoint is intact" in run_of["error"]
                assert run_of["updates"] == 1 and run_of["as_before"], case


WATCHED = """\
import atexit
from torch import distributed
from trl_credit.demo import demo_reward as reward
atexit.register(lambda: print(f"<group left: {distributed.is_initialized()}>", flush=True))
"""


# with two processes on CPUs these are like another one; the layouts above start `cpu_zero3`
LIKE = {"cpu_2proc": "multi_gpu", "multi_node_zero3": "zero3", "cpu_zero3": "zero3"}


@pytest.mark.parametrize(("name", "other"), LIKE.items())
def test_on_cpus_some_configurations_are_alike(tmp_path, monkeypatch, name, other):
    monkeypatch.setenv("MASTER_PORT", "0")
    of_nodes = {"gpu_ids", "rdzv_backend", "same_network", "deepspeed_multinode_launcher", "zero3_init_flag"}

    def settings(name):
        config = yaml.safe_load(on_cpus(name, tmp_path).read_text())
        config |= config.pop("deepspeed_config", {})
        return {key: value for key, value in config.items() if key not in of_nodes}

    assert settings(name) == settings(other)


@pytest.mark.parametrize("name", with_marks(*sorted({p.stem for p in CONFIGS.glob("*.yaml")} - LIKE.keys())))
def test_the_script_starts_with_every_configuration(tmp_path, name):
    """The same file with processes on CPUs, without mixed precision, on one machine.

    Every process leaves its group.
    """
    (tmp_path / "watched.py").write_text(WATCHED)
    sizes = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --use_cpu True --bf16 False".split()
    script = [CONFIGS.parent / "examples" / "train.py", *sizes, "--output_dir", tmp_path / "run"]
    out = run(*accelerate(name, tmp_path), *script, "--reward", f"{tmp_path}/watched.py:reward")
    assert (tmp_path / "run" / "model.safetensors").exists() and "reward_curve.png" in out
    processes = 1 if name == "single_gpu" else 2
    assert out.count("<group left: False>") == out.count("<group left") == processes
