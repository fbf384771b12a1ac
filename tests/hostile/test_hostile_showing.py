"""Consoles, pipes, trackers, the table of completions, text as a metric, plots: whatever fails of what is shown, no run
ends by it, and it is reported once."""

import errno
import io
import json
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from conftest import count_a, sums
from script_helpers import QUICK
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

import trl_credit
from trl_credit import cli
from trl_credit.observe.console import ConsoleCallback
from trl_credit.support.shown import reported, safe_console, shown


pytestmark = pytest.mark.hostile("consoles, trackers and tables", "survived")


def closed_pipe() -> io.TextIOWrapper:
    gone, end = os.pipe()
    os.close(gone)
    return os.fdopen(end, "w", encoding="utf-8", buffering=1)


class Tee:
    """A user's own stream, with no more than `print` needs."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self):
        self.write("")


STREAMS = {
    "gbk": lambda: io.TextIOWrapper(io.BytesIO(), "gbk", "strict"),
    "closed pipe": closed_pipe,
    "full": lambda: open("/dev/full", "w", buffering=1, encoding="utf-8"),
    "none": lambda: None,
    "tee": Tee,
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_run_prints_anywhere(make_trainer, tmp_path, monkeypatch, stream):
    """Both streams fail, from the loading of a model to its saving; the reward prints too."""

    def says(completions, **columns):
        print("→ 奖励 λ", *completions)
        print("\ud800", file=sys.stderr)
        return count_a(completions)

    streams = STREAMS[stream](), STREAMS[stream]()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        trainer = make_trainer("s_trace", reward_funcs=says, disable_tqdm=False, log_completions=True, log_credit=1)
        trainer.results.writes_at_end = stream == "closed pipe"
        trainer.train()
        trainer.save_model()
        assert (sys.stdout, sys.stderr) == streams  # restored
    folder = tmp_path / "run"
    assert trainer.state.global_step == 2 and (folder / "model.safetensors").stat().st_size
    assert len([*folder.glob("completions/*.parquet")]) == 2
    assert (folder / "README.md").is_file() == (stream == "closed pipe")


def test_interrupts_are_no_failures_of_what_is_shown():
    for stop in (KeyboardInterrupt, SystemExit):
        with pytest.raises(stop), safe_console(), shown("this"):
            raise stop


# Callbacks


class Fails(TensorBoardCallback):
    """A tracker that cannot reach its server."""


def unreachable(*args, **kwargs):
    raise ConnectionError("the server is gone")


HOOKS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


@pytest.mark.parametrize("hooks", [["on_log"], HOOKS])
def test_a_tracker_that_fails(make_trainer, tmp_path, caplog, hooks):
    trainer = make_trainer("s_trace", report_to="tensorboard", save_strategy="steps", save_steps=1)
    for name in hooks:
        setattr(Fails, name, unreachable)
    try:
        tracker = Fails()
        trainer.add_callback(tracker)
        trainer.train()
        trainer.evaluate(sums(4))
    finally:
        for name in hooks:
            delattr(Fails, name)
    assert trainer.state.global_step == 2 and (tmp_path / "run" / "checkpoint-2").is_dir()
    reports = [record.message for record in caplog.records if "the server is gone" in record.message]
    assert reports == ["Fails: ConnectionError: the server is gone. The run goes on"]


@pytest.mark.hostile("consoles, trackers and tables", "refused")
@pytest.mark.parametrize("hook", ["on_train_begin", "on_log"])
def test_another_callback_ends_the_run_as_in_trl(make_trainer, hook):
    """Also with a table of completions, which TRL shows in the same method that calls `on_log`."""
    trainer = make_trainer("s_trace", log_completions=True, max_steps=1)
    trainer.add_callback(type("Mine", (TrainerCallback,), {hook: unreachable}))
    with pytest.raises(ConnectionError, match="the server is gone"):
        trainer.train()


# Completions and metrics


def test_columns_that_no_table_takes(make_trainer, caplog, tmp_path):
    columns = {"short": ["a"], "text": "hello", "none": None, "right": list(range(8))}

    def logs(completions, log_extra, **others):
        for name, values in columns.items():
            log_extra(name, values)
        return count_a(completions)

    make_trainer(reward_funcs=logs, log_completions=True).train()
    reports = [record.message for record in caplog.records if record.name.startswith("trl_credit.support")]
    assert len(reports) == len(set(reports)) and any("column 'short' of log_extra" in report for report in reports)
    table = pandas.read_parquet(tmp_path / "run" / "completions" / "completions_00002.parquet")
    assert table["right"].tolist() == list(range(8)) and not {"short", "text", "none"} & set(table)


def test_a_table_that_cannot_be_written(make_trainer, monkeypatch, caplog):
    monkeypatch.setattr("pandas.DataFrame.to_parquet", unreachable)
    trainer = make_trainer(log_completions=True)
    trainer.train()
    assert trainer.state.global_step == 2 and caplog.text.count("the table of log_completions: ConnectionError") == 1


NUMBERS = {"bool": True, "float32": np.float32(0.5), "tensor": torch.tensor([0.5]), "array": np.array(0.5), 3: 2}
NO_NUMBERS = {"text": "no number", "none": None, "several": torch.ones(2), "list": [1], "dict": {}}


class Metrics(trl_credit.STraceTrainer):
    """Writes into TRL's metrics, as scripts do."""

    def _calculate_rewards(self, *args, **kwargs):
        self._metrics["train"]["own"] += ["text", torch.tensor(0.25), None]
        self._metrics["train"]["own_text"].append("text")
        return super()._calculate_rewards(*args, **kwargs)


def test_metrics_that_are_no_numbers_are_left_out(make_trainer, caplog, tmp_path):
    def judge(completions, log_metric, **columns):
        for name, value in {**NUMBERS, **NO_NUMBERS}.items():
            log_metric(name, value)
        return count_a(completions)

    settings = {"save_strategy": "steps", "save_steps": 2, "report_to": "tensorboard"}
    make_trainer((trl_credit.STraceConfig, Metrics), reward_funcs=judge, **settings).train()
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    for row in state["log_history"][:2]:
        assert [row[str(name)] for name in NUMBERS] == [1, 0.5, 0.5, 0.5, 2]
        assert not set(NO_NUMBERS) & set(row) and row["own"] == 0.25 and row["own_text"] is None
    assert caplog.text.count("log_metric of reward function 'judge': ") == 1
    assert {"metric 'own'", "metric 'own_text'"} < reported


# Plots and card


def test_the_model_is_there_before_anything_is_shown_at_the_end(tmp_path, monkeypatch, caplog):
    """And plots that do not fit on the disk are a warning."""
    there = []

    def full(*args, **kwargs):
        there.append((tmp_path / "model.safetensors").is_file())
        raise OSError(errno.ENOSPC, "No space left on device")

    for hook in ("on_log", "on_train_end"):
        monkeypatch.setattr(ConsoleCallback, hook, full)
    monkeypatch.setattr("trl_credit.hub.results.plot_rewards", full)
    flags = [*QUICK, "--max_steps", "1", "--save_steps", "1", "--report_to", "none", "--output_dir", str(tmp_path)]
    assert cli.main(["train", *flags]) == 0
    assert there == [True] * 4 and not (tmp_path / "README.md").exists()  # of a step, the end, and its last lines
    assert caplog.text.count("no plots and no card in ") == 1


@pytest.mark.slow
def test_two_processes_stay_together_whatever_the_main_one_cannot_show(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef mine(completions, log_extra, log_metric, **columns):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        log_extra('short', ['a'])\n        log_extra('mixed', [{}, 'a'] * (len(completions) // 2))\n"
        "    log_metric('judge', 'text' if os.environ['RANK'] == '0' else 0.5)\n"
        "    return [float(len(set(c))) for c in completions]\n"
    )
    flags = [*QUICK, "--max_steps", "2", "--save_steps", "1", "--log_completions", "true", "--reward", "mine.py:mine"]
    command = f"{sys.executable} -m trl_credit train --accelerate_config cpu_2proc {' '.join(flags)} --output_dir run"
    shell = ["bash", "-c", f"{command} 2>&1 | head -n 1; exit ${{PIPESTATUS[0]}}"]
    assert subprocess.run(shell, cwd=tmp_path, timeout=600).returncode == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    assert [row["judge"] for row in state["log_history"]] == [0.5, 0.5]
