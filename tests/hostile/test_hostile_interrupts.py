"""Ctrl-C, SIGTERM and a full disk during a run: one line, the checkpoint that is kept, and no traceback."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from script_helpers import QUICK, error_of
from scripts import load_script

import trl_credit
from trl_credit.runs.checkpoints import last_checkpoint
from trl_credit.support.errors import check_output_dir, disk_full


KIND = "mistakes on the command line"
train = load_script("examples/train.py")


def reward_file(folder: Path, at: str, *, call: int = 3) -> list[str]:
    """Flags for a reward that does something in one of its calls."""
    (folder / "mine.py").write_text(
        f"import os, resource, signal\ncalls = 0\ndef mine(completions, **kwargs):\n    global calls\n    calls += 1\n"
        f"    if calls == {call}:\n        {at}\n    return [float(len(set(c))) for c in completions]\n"
    )
    return ["--reward", "mine.py:mine", "--output_dir", "out", "--save_steps", "1", "--max_steps", "4", *QUICK]


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.slow
def test_an_interrupted_run_says_how_it_goes_on(here, capsys):
    argv = reward_file(here, "os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(SystemExit) as stop:
        train.main([*argv, "--hub_token", "hf_secretsecretsecretsecret"])
    error = capsys.readouterr().err
    assert stop.value.code == 143 and "Traceback" not in error and "hf_secret" not in error
    line = error.strip().splitlines()[-1]
    assert line.startswith("interrupted at step 2 of 4 (SIGTERM): the last checkpoint is out/checkpoint-2; plots and")
    folder = here / "out"
    assert {"README.md", "recipe.yaml", "reward_curve.png", "credit_plot.png"} <= {p.name for p in folder.iterdir()}
    assert not (folder / "model.safetensors").exists() and "2 optimizer steps" in (folder / "README.md").read_text()
    again = shlex.split(line.partition("go on with: ")[2])
    train.main(again[2:])  # without python and the script
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    assert [row["step"] for row in state["log_history"] if "reward" in row] == [1, 2, 3, 4]


# in pieces: Python does not hear a signal that comes just before a sleep begins until it has ended
ASLEEP = "for _ in range(600): time.sleep(0.1)"


def start(code: str) -> subprocess.Popen:
    """Another Python, which imports neither torch nor TRL, once it says that it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(Path(trl_credit.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


@pytest.mark.hostile(KIND, "survived")
def test_a_second_ctrl_c_ends_at_once():
    process = start(
        "import time\nfrom trl_credit.support.signals import StopSignals\n"
        f"with StopSignals():\n    try:\n        print('ready', flush=True)\n        {ASLEEP}\n"
        f"    except KeyboardInterrupt:\n        print('writing', flush=True)\n        {ASLEEP}\n"
    )
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGTERM)  # which says no more than the first did
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "") and process.returncode == 130


@pytest.mark.hostile(KIND, "survived")
def test_ctrl_c_while_libraries_are_imported():
    process = start(
        "import time\nfrom trl_credit.support.startup import begin\nbegin()\nprint('ready', flush=True)\n"
        f"try:\n    {ASLEEP}\nexcept BaseException:\n    pass\n"  # as an import may swallow it
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.strip() == "interrupted while loading: nothing was trained or written" and process.returncode == 130


# Full disk


@contextmanager
def limit_of_files():
    """Restores the largest size of a file, beyond which a write fails as on a full disk. Ends with the block, not with
    the test: pytest may be writing to a file itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.hostile(KIND, "refused")
def test_a_full_disk_before_the_start(tmp_path):
    check_output_dir(tmp_path / "run" / "one")
    with pytest.raises(ValueError, match="^output_dir='.*one' cannot be written to"), limit_of_files() as before:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        check_output_dir(tmp_path / "run" / "one")
    assert not list(tmp_path.iterdir())  # neither try left anything


@pytest.mark.hostile(KIND, "survived")
def test_a_full_disk_in_the_middle_of_a_save(here, capsys):
    full = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))"
    with limit_of_files():
        message = error_of(train.main, reward_file(here, full, call=2), capsys, code=1)
    assert message.startswith("disk full in 'out': the last checkpoint is out/checkpoint-1; make room, and go on")
    assert message.endswith("--resume_from_checkpoint true")
    assert last_checkpoint("out").name == "checkpoint-1"


FULL = [OSError(28, ""), RuntimeError("PytorchStreamWriter failed"), Exception("File too large (os error 27)")]


@pytest.mark.parametrize("error", FULL, ids=["number", "torch", "safetensors"])
def test_errors_of_a_full_disk(error):
    later = RuntimeError("the card")
    later.__context__ = error
    assert disk_full(error) and disk_full(later)
    assert not disk_full(FileNotFoundError(2, "No such file")) and not disk_full(ValueError("full"))
