"""The scripts of examples/ as a user runs them, and the data and reward of docs/start.md."""

import json
import re
import runpy
import subprocess
import sys

import pytest
from data_helpers import write
from script_helpers import error_of
from scripts import ROOT, load_script


train, evaluate = (load_script(f"examples/{name}.py") for name in ("train", "evaluate"))
QUICK = ["--max_steps", "2", "--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1"]


@pytest.mark.slow
def test_default_run_leaves_checkpoint_card_and_curve(tmp_path):
    words = [sys.executable, train.__file__, *QUICK]
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
    return lambda *argv: train.main([*QUICK, "--output_dir", "out", *map(str, argv)])


def test_a_model_that_cannot_read_the_data_is_a_warning(run, tmp_path, caplog):
    data = write(tmp_path / "words.jsonl", [{"problem": "Natalia sold clips", "answer": "72"}] * 8)
    run("--dataset_name", data, "--max_steps", 1)
    assert "the model's tokenizer does not know" in caplog.text


def test_a_reward_of_a_module_in_the_working_directory(run, tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text("def none(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    run("--reward", "own_rewards.none", "--max_steps", 1)
    assert (tmp_path / "out" / "reward_curve.png").exists()


# evaluate.py


@pytest.mark.slow
def test_the_script_with_defaults(here, capsys):
    evaluate.main(["--quiet", "--max_problems", "8"])
    shown = capsys.readouterr().out
    assert "| embedded model | " in shown and "demo pass@16 (demo)" in shown
    files = {p.name for p in (here / "evaluation").iterdir()}
    assert files == {"evaluation.json", "evaluation.md", "evaluation.png", "samples"}
    assert str(here) not in (here / "evaluation" / "evaluation.json").read_text()
    evaluate.main(["--quiet", "--rescore", "--metrics", "pass@1"])
    assert "pass@16" not in capsys.readouterr().out


def test_more_than_one_process_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "an evaluation is one process" in error_of(evaluate.main, [], capsys)


# docs/start.md


SUMS = runpy.run_path(str(ROOT / "examples" / "sums" / "sums.py"))


SAID = dict.fromkeys((" 64", " 64, which is", "\n64."), 1.0) | dict.fromkeys((" 640", " 54", " about 64", ""), 0.0)


@pytest.mark.parametrize(("text", "reward"), SAID.items())
def test_the_reward_reads_the_first_number(text, reward):
    assert SUMS["right"]([text], ["64"], problem=["35 + 29"]) == [reward]


def test_the_sets_hold_every_sum_once(tmp_path):
    SUMS["write"](tmp_path / "sums")
    files = [tmp_path / "sums" / f"{name}.jsonl" for name in ("train", "test")]
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [len(part) for part in parts] == [2244, 256]
    rows = [row for part in parts for row in part]
    assert len({row["problem"] for row in rows}) == 2500
    assert all(eval(row["problem"]) == int(row["answer"]) for row in rows)
