"""Every layout of processes gives the same parameters and metrics after three steps, and every accelerate file starts.

The reference is one process. DeepSpeed runs where it is installed; CI installs it.
"""

import json
from pathlib import Path

import pytest
import torch
from processes import CONFIGS, accelerate, run
from run_layouts import CASES
from safetensors.torch import load_file

from trl_credit.demo import demo_model_path


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    run("run_layouts.py", folder / "one", 8, 1)
    return folder / "one"


LAYOUTS = {
    "accumulation": (None, 1, 8),
    "ddp": ("cpu_2proc", 4, 1),
    "ddp_windows": ("cpu_2proc", 2, 2),  # each process sorts its own rows
    "fsdp2": ("fsdp2", 4, 1),
    "zero2": ("zero2", 4, 1),
    "zero3": ("cpu_zero3", 4, 1),
}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=pytest.mark.deepspeed if x.startswith("zero") else ()) for x in LAYOUTS]
)
def test_every_layout_of_processes_gives_one_answer(one_process, tmp_path, layout):
    name, *sizes = LAYOUTS[layout]
    run(*([] if name is None else accelerate(name, tmp_path)), "run_layouts.py", tmp_path, *sizes)
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
        if name is not None and case == "opo":  # in some step only one process had something to train on
            idle = [json.loads((tmp_path / case / f"rank{r}.json").read_text())["idle"] for r in range(2)]
            assert any(a != b for a, b in zip(*idle, strict=True))


@pytest.mark.parametrize("name", ["cpu_2proc", "fsdp2", pytest.param("cpu_zero3", marks=pytest.mark.deepspeed)])
def test_a_loss_that_is_not_finite_on_one_process_is_skipped_on_all(tmp_path, name):
    run(*accelerate(name, tmp_path), "run_nonfinite.py", "steps", tmp_path)
    for rank in range(2):
        log = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert [row["credit/skipped_updates"] for row in log] == [0.0, 1.0, 0.0, 0.0]
        assert all(row["grad_norm"] > 0 for row in log[2:])  # training continues
    assert all(p.isfinite().all() for p in load_file(tmp_path / "model.safetensors").values())


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["zero2", "cpu_zero3"])
def test_deepspeed_looks_at_losses_once_per_window(tmp_path, name):
    run(*accelerate(name, tmp_path), "run_nonfinite.py", "windows", tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        for case, window in {"clean": 4, "first": 4, "middle": 4, "last": 4, "cut": 2, "first_of_cut": 2}.items():
            run_of = found[case]
            ends = [False, False, False, True] + [False] * (window - 1) + [True]
            assert run_of["ends"] == ends, case
            assert run_of["collectives"] == [int(is_end) for is_end in ends], case  # beside those of TRL
            if case in ("clean", "cut"):
                assert (run_of["error"], run_of["updates"], run_of["moved"]) == (None, 2, True)
            else:
                assert "the loss is not finite" in run_of["error"] and "checkpoint is intact" in run_of["error"]
                assert run_of["updates"] == 1 and run_of["as_before"], case


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_reference_moves(one_process, case):
    before = load_file(Path(demo_model_path()) / "model.safetensors")
    after = load_file(one_process / case / "model.safetensors")
    moved = max((before[name].float() - after[name].float()).abs().max().item() for name in after)
    assert moved > 1e-3  # a thousand times the tolerance between layouts


WATCHED = """\
import atexit
from torch import distributed
from trl_credit.demo import demo_reward as reward
atexit.register(lambda: print(f"<group left: {distributed.is_initialized()}>", flush=True))
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p.stem, marks=pytest.mark.deepspeed if "zero" in p.stem else ())
        for p in sorted(CONFIGS.glob("*.yaml"))
    ],
)
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
