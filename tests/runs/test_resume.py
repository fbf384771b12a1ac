"""A run that is killed and resumed equals an uninterrupted one to the last bit: one process, two, and ZeRO-3."""

import json
from pathlib import Path

import pytest
import torch
from processes import accelerate, run, start
from safetensors.torch import load_file


pytestmark = pytest.mark.slow


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file that torch saved, by their path in it."""
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


@pytest.mark.parametrize("kind", ["trees", "groups"])
@pytest.mark.parametrize("layout", ["one", "ddp", pytest.param("zero3", marks=pytest.mark.deepspeed)])
def test_killed_and_resumed_is_uninterrupted(tmp_path, layout, kind):
    name = {"one": None, "ddp": "cpu_2proc", "zero3": "cpu_zero3"}[layout]
    command = [*([] if name is None else accelerate(name, tmp_path)), "run_resume.py"]
    killed = start(*command, "kill", tmp_path, kind)
    assert killed.returncode != 0
    left = sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*"))
    assert left == ["checkpoint-3"], killed.stderr[-4000:]
    run(*command, "resume", tmp_path, kind)
    if layout == "zero3":  # a run without DeepSpeed cannot read its optimizer
        done = start("run_resume.py", "resume", tmp_path, kind)
        assert done.returncode == 1
        assert "layout ZeRO-3" in done.stderr
    if layout == "ddp":  # already at its end: no process trains or writes anything
        files = [path for path in (tmp_path / "killed").rglob("*") if "credit_run" not in path.name]
        before = [path.stat().st_mtime_ns for path in files]
        run(*command, "resume", tmp_path, kind)
        assert before == [path.stat().st_mtime_ns for path in files]

    reference, resumed = tmp_path / "uninterrupted" / "checkpoint-6", tmp_path / "killed" / "checkpoint-6"
    weights = load_file(reference / "model.safetensors")
    for key, value in load_file(resumed / "model.safetensors").items():
        assert torch.equal(value, weights[key]), key
    assert (reference / "credit_state.json").read_bytes() == (resumed / "credit_state.json").read_bytes()
    if kind == "trees":
        kept = [load_file(c / "replay.safetensors") for c in (reference, resumed)]
        assert kept[0].keys() == kept[1].keys() and all(torch.equal(kept[0][k], kept[1][k]) for k in kept[0])
        assert len(kept[0]["birth"]) > 0
    if kind == "groups":
        rates = [(c / "prompt_rates.jsonl").read_bytes() for c in (reference, resumed)]
        assert rates[0] == rates[1] and rates[0].count(b"\n") > 6
    assert metrics_of(reference) == metrics_of(resumed)
    optimizers = sorted(reference.glob("optimizer.pt")) + sorted(reference.glob("global_step6/*optim_states.pt"))
    assert optimizers
    for path in optimizers:
        ours = tensors_of(resumed / path.relative_to(reference))
        for key, value in tensors_of(path).items():
            assert torch.equal(value, ours[key]), key
