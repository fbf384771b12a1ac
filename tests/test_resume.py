"""A run that was killed and resumed is the run that was not, to the last bit: one process, two, and ZeRO-3."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import WORKERS
from safetensors.torch import load_file
from test_layouts import ENVIRONMENT, launch, needs_deepspeed, on_cpus, run


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file that torch saved, by their place in it."""
    found = {}

    def walk(x, name):
        if isinstance(x, torch.Tensor):
            found[name] = x
        elif isinstance(x, dict):
            for key, value in x.items():
                walk(value, f"{name}/{key}")
        elif isinstance(x, (list, tuple)):
            for i, value in enumerate(x):
                walk(value, f"{name}/{i}")

    walk(torch.load(path, weights_only=False), path.name)
    return found


def metrics_of(checkpoint: Path) -> list[dict]:
    log = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    timed = ("seconds", "time", "runtime", "per_second")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in log]


@pytest.mark.parametrize("layout", ["one", "ddp", pytest.param("zero3", marks=needs_deepspeed)])
def test_killed_and_resumed_is_uninterrupted(tmp_path, layout):
    script = str(WORKERS / "run_resume.py")
    name = {"one": None, "ddp": "cpu_2proc", "zero3": "cpu_zero3"}[layout]
    command = [sys.executable] if name is None else launch(on_cpus(name, tmp_path))
    killed = subprocess.run(
        [*command, script, "whole_then_killed", str(tmp_path)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=900,
    )
    assert killed.returncode != 0
    left = sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*"))
    assert left == ["checkpoint-3"], killed.stderr[-4000:]
    run([*command, script, "resume", str(tmp_path)], tmp_path)
    if layout == "zero3":  # whose optimizer is nothing that a run without DeepSpeed could read
        done = subprocess.run(
            [sys.executable, script, "resume", str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT
        )
        assert done.returncode == 1
        assert "holds the optimizer of a run with DeepSpeed ZeRO-3, which a run without" in done.stderr
    if layout == "ddp":  # at its end already: nothing is trained, by any process, and nothing is written
        before = {
            path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*") if "credit_run" not in path.name
        }
        run([*command, script, "resume", str(tmp_path)], tmp_path)
        assert before == {path: path.stat().st_mtime_ns for path in before}

    whole, resumed = tmp_path / "whole" / "checkpoint-6", tmp_path / "killed" / "checkpoint-6"
    weights = load_file(whole / "model.safetensors")
    for key, value in load_file(resumed / "model.safetensors").items():
        assert torch.equal(value, weights[key]), key
    assert (whole / "credit_state.json").read_bytes() == (resumed / "credit_state.json").read_bytes()
    replay = [load_file(c / "replay.safetensors") for c in (whole, resumed)]
    assert len(replay[0]["birth"]) > 0
    assert all(torch.equal(replay[0][k], replay[1][k]) for k in replay[0])
    assert metrics_of(whole) == metrics_of(resumed)
    optimizers = sorted(whole.glob("optimizer.pt")) + sorted(whole.glob("global_step6/*optim_states.pt"))
    assert optimizers
    for path in optimizers:
        ours = tensors_of(resumed / path.relative_to(whole))
        for key, value in tensors_of(path).items():
            assert torch.equal(value, ours[key]), key
