"""`benchmarks/gpu.sh` on a CPU: that every part runs, and that failures end with exit code 1 or 2."""

import importlib
import math
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
from scripts import load_script


SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.sh"


@pytest.mark.slow
def test_a_dry_run_of_all_parts(tmp_path):
    output = tmp_path / "found.md"
    # the usual limits are for a GPU that nobody shares
    limits = [f"--{part}_seconds=400" for part in ("correctness", "vllm", "passes", "speed", "learning")]
    # the script takes the Python of the environment that is active
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(SCRIPT), "--dry_run", "--repeats=1", "--learning_steps=1", *limits, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    written = output.read_text(encoding="utf-8")
    assert "Tiny sizes on a CPU" in written and "trl " in written and "torch " in written
    for text in (done.stdout, written):
        lines = [line for line in text.splitlines() if line.startswith("**") and ":" in line and "(" in line]
        parts = "correctness: ok, vllm: not run, passes: ok, speed: ok, learning: ok"
        assert [line.split("** (")[0] for line in lines] == [f"**{part}" for part in parts.split(", ")]
    # float32 on the device of a dry run is the reference itself, to the bit; bfloat16 is not
    exact = [line for line in written.splitlines() if ": float32 |" in line]
    assert len(exact) == 10 and all("gradient 0.0e+00 |" in line for line in exact)
    rough = [line for line in written.splitlines() if ": bfloat16 |" in line]
    assert len(rough) == 10 and not any("gradient 0.0e+00 |" in line for line in rough)
    assert sum(": a run |" in line for line in written.splitlines()) == 5
    for algo in ("grpo", "s_trace", "p_trace", "grpo_lambda", "spo_chain"):
        assert written.count(f"| `{algo}` | 8 × 32 |") == written.count(f"| `{algo}` | 4 × 64 |") == 1
    # a model without layers, the same rows computed in four ways, and a tree in two
    for algo in ("grpo", "s_trace"):
        assert written.count(f"| `{algo}` | ") == written.count(f"| `{algo}`, logging step |") + 3
    for form in ("plain rows, `sdpa`", "shared prompt, `sdpa`", "end to end, `eager`"):
        assert written.count(f"| {form} |") == 2
    assert written.count("| tree, in pieces |") == written.count("| tree, dense mask |") == 1
    assert "flash attention |" in written and "vLLM, colocated, with sleep mode |" in written
    table = written.partition("## For README.md")[2]
    assert "| checks that passed | correctness 25 of 25, passes 7 of 7, learning 2 of 2 |" in table
    assert table.count(" tokens: a step, TRL's = 1 | time ") == 10


def test_wheels_of_a_folder_are_used_and_nothing_is_installed(tmp_path):
    with zipfile.ZipFile(tmp_path / "probe-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sitecustomize.py", "print('the wheel is here')")  # Python imports it when it starts
        wheel.writestr("probe-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
        wheel.writestr("probe-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("probe-1.dist-info/RECORD", "")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for wheels in ("--wheels", str(tmp_path)), (f"--wheels={tmp_path}",):
        done = subprocess.run([SCRIPT, *wheels, "--help"], capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode == 0 and "the wheel is here" in done.stdout and "--dry_run" in done.stdout, done.stderr
    assert "probe" not in {distribution.name for distribution in distributions()}


@pytest.fixture
def gpu(monkeypatch):
    """Imports a module of the script."""
    monkeypatch.syspath_prepend(SCRIPT.parent / "gpu")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    return importlib.import_module


@pytest.mark.slow
def test_a_failed_check_a_part_that_hangs_and_wrong_flags(gpu, tmp_path, capsys):
    script = load_script(SCRIPT.parent / "gpu" / "__main__.py")
    # no reward rises by 2; and nothing is imported within a tenth of a second
    flags = "--least_rise=2 --learning_steps=1 --correctness_seconds=.1 --learning_seconds=400 --output".split()
    assert script.main(["--dry_run", "learning", "correctness", *flags, str(tmp_path / "found.md")]) == 1
    written = (tmp_path / "found.md").read_text(encoding="utf-8")
    assert "| grpo: rise of the reward | +0.000 | at least +2.000 | FAILED |" in written
    assert "**learning: FAILED** (0 of 2 checks, 2 measured" in written
    assert "| correctness | stopped after 0 s | an end before | FAILED |" in written
    assert "**correctness: FAILED** (0 of 1 checks" in written
    no_folder = ["--output", str(tmp_path / "no" / "file.md")]
    for words, message in ((no_folder, "there is no folder"), (["lerning"], "unknown part 'lerning'")):
        with pytest.raises(SystemExit) as stopped:
            script.main(["--dry_run", *words])
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_what_is_wrong_is_never_ok(gpu, tmp_path):
    correctness, record, report = map(gpu, ("correctness", "record", "report"))
    right = correctness.Step(torch.zeros(3), {"w": torch.tensor([3.0, 4.0])}, torch.zeros(3))
    off = replace(right, logps=torch.tensor([0.0, -0.5, 0.2]), gradient={"w": torch.tensor([3.0, 4.5])})
    assert correctness.differences(right, right) == (0.0, 0.0, 0.0)
    assert correctness.differences(off, right) == pytest.approx((0.5, 0.0, 0.1))
    # what is no number is within no tolerance, and a weight without a gradient is not one with the gradient 0
    nan = replace(right, logps=torch.tensor([math.nan, 0.0, 0.0]))
    assert not correctness.differences(nan, right)[0] <= 1e9
    assert correctness.differences(replace(right, gradient={}), right)[2] == math.inf
    recorder = record.Recorder(tmp_path / "found.jsonl")
    with recorder.attempt("a"):
        raise RuntimeError("two\nlines")
    recorder.check("b", "1", wanted="1", ok=True)
    with (tmp_path / "found.jsonl").open("a") as file:
        file.write('{"kind": "check", "wh')  # killed while it wrote
    entries = record.read(tmp_path / "found.jsonl")
    assert [entry["outcome"] for entry in entries] == ["FAILED", "ok"] and entries[0]["found"] == "RuntimeError: two"
    assert report.failed(entries) and report.failed([]) and not report.failed(entries[1:])
    assert report.result_line("c", entries, seconds=1.0) == "**c: FAILED** (1 of 2 checks, 1 s)"
