"""One answer on every layout of processes: parameters and metrics after three steps, and the accelerate configurations.

The reference is one process. DeepSpeed runs where it is installed; CI installs it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import WORKERS
from run_layouts import CASES
from safetensors.torch import load_file

from trl_credit.demo import demo_model_path


ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "accelerate_configs"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def on_cpus(name: str, folder: Path) -> Path:
    """A configuration of `accelerate_configs/`, for two processes on CPUs in place of a node of GPUs."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config |= {"use_cpu": True, "mixed_precision": "no", "num_machines": 1, "machine_rank": 0}
    config["num_processes"] = min(config["num_processes"], 2)
    config["main_process_port"] = int(os.environ["MASTER_PORT"])
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=ENVIRONMENT, timeout=900)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def launch(config: Path, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    return [*launcher, *arguments]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    run([sys.executable, str(WORKERS / "run_layouts.py"), str(folder / "one"), "8", "1"], folder)
    return folder / "one"


LAYOUTS = {
    "accumulation": (None, 1, 8),
    "ddp": ("cpu_2proc", 4, 1),
    "ddp_windows": ("cpu_2proc", 2, 2),  # whose rows each process sorts for itself
    "fsdp2": ("fsdp2", 4, 1),
    "zero2": ("zero2", 4, 1),
    "zero3": ("cpu_zero3", 4, 1),
}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=needs_deepspeed if x.startswith("zero") else ()) for x in LAYOUTS]
)
def test_every_layout_of_processes_gives_one_answer(one_process, tmp_path, layout):
    name, per_device, accumulation = LAYOUTS[layout]
    script = [str(WORKERS / "run_layouts.py"), str(tmp_path), str(per_device), str(accumulation)]
    run([sys.executable, *script] if name is None else launch(on_cpus(name, tmp_path), *script), tmp_path)
    for case in CASES:
        reference, found = (load_file(p / case / "model.safetensors") for p in (one_process, tmp_path))
        start = sum(p.double().abs().sum().item() for p in reference.values())
        assert start > 0 and set(reference) <= set(found)  # DeepSpeed adds the tied head
        for key, value in reference.items():
            torch.testing.assert_close(found[key].float(), value.float(), rtol=0, atol=1e-6, msg=f"{case}: {key}")
        logs = [json.loads((p / case / "rank0.json").read_text())["log"] for p in (one_process, tmp_path)]
        for left, right in zip(*logs, strict=True):
            for metric in ("reward", "reward_std", "completions/mean_length", "loss", "grad_norm"):
                assert right[metric] == pytest.approx(left[metric], rel=1e-4, abs=2e-6), (case, metric)
        if name is not None and case == "opo":  # one process had nothing to train on in some step, the other had
            idle = [json.loads((tmp_path / case / f"rank{r}.json").read_text())["idle"] for r in range(2)]
            assert any(a != b for a, b in zip(*idle, strict=True))


@pytest.mark.parametrize("name", ["cpu_2proc", "fsdp2", pytest.param("cpu_zero3", marks=needs_deepspeed)])
def test_a_loss_that_is_not_finite_on_one_process_is_left_out_on_all(tmp_path, name):
    run(launch(on_cpus(name, tmp_path), str(WORKERS / "run_nonfinite.py"), str(tmp_path)), tmp_path)
    for rank in range(2):
        log = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert [row["credit/skipped_updates"] for row in log] == [0.0, 1.0, 0.0, 0.0]
        assert all(row["grad_norm"] > 0 for row in log[2:])  # and goes on
    assert all(p.isfinite().all() for p in load_file(tmp_path / "model.safetensors").values())


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_reference_moves(one_process, case):
    before = load_file(Path(demo_model_path()) / "model.safetensors")
    after = load_file(one_process / case / "model.safetensors")
    moved = max((before[name].float() - after[name].float()).abs().max().item() for name in after)
    assert moved > 1e-3  # a thousand times what the layouts may differ by


WATCHED = """\
import atexit, threading, time
from torch import distributed
from trl_credit.demo import demo_reward as reward
atexit.register(lambda: print(f"<group left: {distributed.is_initialized()}>", flush=True))

def late():  # as a thread of gloo, which needs Python once more when the script has ended
    threading.main_thread().join()
    time.sleep(0.15)
    print("<put away>", flush=True)

threading.Thread(target=late, daemon=True).start()
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(p.stem, marks=needs_deepspeed if "zero" in p.stem else ()) for p in sorted(CONFIGS.glob("*.yaml"))],
)
def test_the_script_starts_with_every_configuration(tmp_path, name):
    """As far as CPUs go: the same file with processes on CPUs, without mixed precision, on one machine.

    Every process leaves its group, and gives torch's threads time to finish, which else now and then abort it.
    """
    (tmp_path / "watched.py").write_text(WATCHED)
    arguments = "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --use_cpu True --bf16 False"
    reward = ["--reward", "watched.reward", "--output_dir", str(tmp_path / "run")]
    script = [str(ROOT / "examples" / "train.py"), *arguments.split(), *reward]
    out = run(launch(on_cpus(name, tmp_path), *script), tmp_path)
    assert (tmp_path / "run" / "model.safetensors").exists() and "reward_curve.png" in out
    processes = 1 if name == "single_gpu" else 2
    assert out.count("<group left: False>") == out.count("<group left") == processes
    assert processes == 1 or out.count("<put away>") == processes


def test_the_names_are_those_of_the_field():
    names = {"single_gpu", "multi_gpu", "zero2", "zero3", "fsdp2", "multi_node_zero3", "cpu_2proc", "cpu_zero3"}
    assert {p.stem for p in CONFIGS.glob("*.yaml")} == names
