"""A run that is killed and resumed equals an uninterrupted one to the last bit: one process, two, and ZeRO-3."""

import json
from pathlib import Path

import pytest
import run_resume
import torch
from processes import accelerate, run, start
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves
from weight_helpers import untimed


pytestmark = pytest.mark.slow


def tensors_of(path: Path) -> list[torch.Tensor]:
    """All tensors of a file that torch saved, in order."""
    return [x for x in tree_leaves(torch.load(path, weights_only=False)) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("one", "trees"),
        ("one", "groups"),
        ("one", "teacher"),
        ("ddp", "trees"),
        pytest.param("zero3", "trees", marks=pytest.mark.deepspeed),
        pytest.param("zero3", "teacher", marks=pytest.mark.deepspeed),
    ],
)
def test_killed_and_resumed_is_uninterrupted(tmp_path, layout, kind):
    name = {"one": None, "ddp": "cpu_2proc", "zero3": "cpu_zero3"}[layout]
    command = [*([] if name is None else accelerate(name, tmp_path)), "run_resume.py"]
    killed = start(*command, "kill", tmp_path, kind)
    assert killed.returncode != 0
    left = sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*"))
    assert left == ["checkpoint-3"], killed.stderr[-4000:]
    if layout == "one":
        run_resume.main("resume", tmp_path, kind)
    else:
        run(*command, "resume", tmp_path, kind)
    if layout == "zero3":  # a run without DeepSpeed cannot read its optimizer
        with pytest.raises(ValueError, match="layout ZeRO-3"):
            run_resume.main("resume", tmp_path, kind)

    reference, resumed = tmp_path / "uninterrupted" / "checkpoint-6", tmp_path / "killed" / "checkpoint-6"
    teachers = [path.name for path in reference.glob("teacher*.safetensors")]
    assert len(teachers) == (kind == "teacher") * (1 + (layout == "zero3"))
    for file in ["model.safetensors", *teachers, *(["replay.safetensors"] if kind == "trees" else [])]:
        before, after = (load_file(checkpoint / file) for checkpoint in (reference, resumed))
        assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before), file
    assert kind != "trees" or len(after["birth"]) > 0
    for file in ("credit_state.json", "prompt_rates.jsonl"):
        assert (reference / file).read_bytes() == (resumed / file).read_bytes(), file
    assert (reference / "prompt_rates.jsonl").read_bytes().count(b"\n") > 6
    logs = [json.loads((path / "trainer_state.json").read_text())["log_history"] for path in (reference, resumed)]
    assert untimed(logs[0]) == untimed(logs[1])
    optimizers = sorted(reference.glob("optimizer.pt")) + sorted(reference.glob("global_step6/*optim_states.pt"))
    assert optimizers
    for path in optimizers:
        ours = tensors_of(resumed / path.relative_to(reference))
        torch.testing.assert_close(ours, tensors_of(path), rtol=0, atol=0, equal_nan=False)
