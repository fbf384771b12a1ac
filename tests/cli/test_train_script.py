"""`examples/train.py` as a user runs it: the default run, files and columns, resuming, and input that is wrong."""

import re
import subprocess
import sys

import pytest
from data_helpers import write
from scripts import load_script


script = load_script("examples/train.py")
QUICK = ["--max_steps", "2", "--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1"]


@pytest.mark.slow
def test_default_run_leaves_checkpoint_card_and_curve(tmp_path):
    words = [sys.executable, script.__file__, *QUICK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = tmp_path / "runs" / "s_trace"
    assert {"model.safetensors", "README.md", "reward_curve.png", "checkpoint-2"} <= {p.name for p in folder.iterdir()}
    assert "Selective Eligibility Traces" in (folder / "README.md").read_text()
    assert (folder / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "step     2  reward" in done.stdout and "runs/s_trace/README.md" in done.stdout
    # libraries print nothing; stderr holds the progress bar alone
    assert done.stdout.startswith("S-trace on 1,024 prompts: 4 responses per prompt\n")
    assert [line for line in done.stderr.splitlines() if line.strip() and not re.search(r"(it/s|s/it)\]", line)] == []


@pytest.fixture
def run(here):
    return lambda *argv: script.main([*QUICK, "--output_dir", "out", *map(str, argv)])


def test_a_model_that_cannot_read_the_data_is_a_warning(run, tmp_path, caplog):
    data = write(tmp_path / "words.jsonl", [{"problem": "Natalia sold clips", "answer": "72"}] * 8)
    run("--dataset_name", data, "--max_steps", 1)
    assert "the model's tokenizer does not know" in caplog.text


def test_a_reward_of_a_module_in_the_working_directory(run, tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text("def none(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    run("--reward", "own_rewards.none", "--max_steps", 1)
    assert (tmp_path / "out" / "reward_curve.png").exists()
