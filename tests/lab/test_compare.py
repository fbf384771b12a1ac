"""`trl-credit compare`: the grid and how it resumes, its progress, and real runs of the command."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from custom_functions import custom
from rich.console import Console
from scripts import ROOT

from trl_credit.lab.comparison.entries import read_entries, read_sweep
from trl_credit.lab.comparison.grid_file import write_grid
from trl_credit.lab.comparison.grid_settings import Shared, make_grid
from trl_credit.lab.comparison.groups import group_runs
from trl_credit.lab.comparison.histories import read_history
from trl_credit.lab.comparison.live_table import ProgressTable
from trl_credit.lab.comparison.processes import Progress
from trl_credit.lab.comparison.scoring import compare_results
from trl_credit.lab.comparison.settings_tables import settings_beside_credit, settings_of_credit


QUICK = ["--max_steps", "6", "--per_device_train_batch_size", "8", "--num_generations", "4"]
TRAINED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.fixture
def call(command_said):
    """Runs `trl-credit compare`."""
    return partial(command_said, "compare")


def grid_of(folder, *algorithms, credit=(), seeds=(0, 1), config=(), flags=()):
    return make_grid(read_entries(algorithms, credit), seeds, Shared(config, flags), folder=folder)


def write(grid, primary="area"):
    return write_grid(grid, grid.verdict_runs(), primary=primary)


def flags_of(words):
    return {word: value for word, value in zip(words, words[1:], strict=False) if word.startswith("--")}


# The grid


def test_a_run_has_the_settings_that_its_algorithm_has(tmp_path):
    flags = ["--trace_lambda", "0.5", "--segment_advantage", "mean", "--learning_rate", "1e-4"]
    grid = grid_of(tmp_path, "grpo", "s_trace", "spo_tree", "r=s_trace --selector random", flags=flags)
    assert [run.name for run in grid.verdict_runs()[::2]] == [
        f"{n}/seed-0" for n in ("grpo", "s_trace", "spo_tree", "r")
    ]
    assert [run.seed for run in grid.verdict_runs()] == [0, 1] * 4
    assert grid.left_out == {
        "GRPO": ["segment_advantage", "trace_lambda"],
        "S-trace": ["segment_advantage"],
        "SPO-tree": ["trace_lambda"],
        "r": ["segment_advantage"],
    }
    words = flags_of(grid.verdict_runs()[6].words)
    assert words["--algo"] == "s_trace" and words["--selector"] == "random" and words["--trace_lambda"] == "0.5"
    assert words["--output_dir"] == str(tmp_path / "runs" / "r" / "seed-0") and words["--seed"] == "0"
    assert words["--logging_steps"] == words["--save_total_limit"] == "1" and "--segment_advantage" not in words
    assert all("--trace_lambda" not in run.words and "--learning_rate" in run.words for run in grid.verdict_runs()[:2])
    assert not list(tmp_path.iterdir())


def test_flags_behind_a_name_are_never_left_out(tmp_path):
    with pytest.raises(ValueError, match="^low: trace_lambda=0.5 does nothing"):
        grid_of(tmp_path, "low=grpo --trace_lambda 0.5")


def test_settings_from_files_are_left_out_for_algorithms_that_lack_them(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("model_name_or_path: demo\nalgo: s_trace\noutput_dir: elsewhere\nmax_steps: 3\ntrace_lambda: 0.7\n")
    grid = grid_of(tmp_path, "grpo", "s_trace", config=[str(own)], flags=["--max_steps", "4"])
    assert grid.left_out == {"GRPO": ["trace_lambda"]} and grid.steps == {"grpo": 4, "s_trace": 4}
    assert grid.settings["s_trace"] == {"model_name_or_path": "demo", "max_steps": 3, "trace_lambda": 0.7}
    assert grid.settings["grpo"] == {"model_name_or_path": "demo", "max_steps": 3}
    write(grid)
    file = Path(flags_of(grid.verdict_runs()[0].words)["--config"])
    assert file == tmp_path / "settings" / "grpo.yaml" and "trace_lambda" not in file.read_text()
    own.write_text(own.read_text().replace("trace_lambda: 0.7", "trace_lambda: 0.8"))
    other = grid_of(tmp_path, "s_trace", config=[str(own)], flags=["--max_steps", "4"])
    with pytest.raises(ValueError, match="was made with other settings \\(trace_lambda 0.7 → 0.8\\)"):
        write(other)


def test_a_custom_function_is_an_algorithm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def half(config, tokens):\n    raise NotImplementedError\n")
    grid = grid_of(tmp_path, "grpo", credit=["mine.py:half", "again=mine.py:half"], seeds=[3], flags=["--gamma", "0.9"])
    assert [run.name for run in grid.verdict_runs()] == ["grpo/seed-3", "half/seed-3", "again/seed-3"]
    assert flags_of(grid.verdict_runs()[1].words)["--credit"] == "mine.py:half"
    assert grid.left_out == {"GRPO": ["gamma"]}  # a function may read any knob


def test_the_settings_of_a_class_are_settings_of_its_runs_alone(tmp_path):
    words = custom("GroupWords")
    credit = [words, f"weak=s_trace+{words} --cap 2"]
    file = tmp_path / "own.yaml"
    file.write_text("model_name_or_path: demo\ngrows: true\n")
    grid = grid_of(tmp_path, "grpo", credit=credit, seeds=[3], config=[str(file)], flags=["--strength", "0.7"])
    assert [run.name for run in grid.verdict_runs()] == ["grpo/seed-3", "GroupWords/seed-3", "weak/seed-3"]
    assert grid.left_out == {"GRPO": ["grows", "strength"]}
    assert [settings.get("grows") for settings in grid.settings.values()] == [None, True, True]
    grpo, plain, weak = (flags_of(run.words) for run in grid.verdict_runs())
    assert "--strength" not in grpo and plain["--strength"] == weak["--strength"] == "0.7"
    assert (weak["--algo"], weak["--credit"], weak["--cap"]) == ("s_trace", words, "2") and "--cap" not in plain
    sweep = read_sweep("strength=0.5,0.2", [100, 101])
    swept = make_grid(read_entries(["grpo"], [words]), [0], Shared(sweep=sweep), folder=tmp_path)
    assert [run.name for run in swept.tuning_runs()[::2]] == [f"GroupWords/strength-{x}/seed-100" for x in (0.2, 0.5)]
    assert "--strength" in swept.verdict_runs({"GroupWords": "0.2"})[1].words
    with pytest.raises(ValueError, match="--equal strength=1 does nothing for GRPO: leave it out"):
        make_grid(read_entries(["grpo"], [words]), [0], Shared(equal={"strength": "1"}), folder=tmp_path)
    for entry in ("low=grpo --strength 1", f"low=grpo --credit {words} --strenth 1"):
        with pytest.raises(ValueError, match="low: unknown flag '--stren"):
            grid_of(tmp_path, entry, credit=[words])
    with pytest.raises(ValueError, match="give it a name, NAME="):
        read_entries([], [f"{words} --strength 1"])


def test_finished_runs_with_custom_credit_have_its_name(make_trainer, tmp_path):
    runs = []
    for i, settings in enumerate(({}, {"credit": custom("GroupWords")}, {"credit": custom("GroupWords"), "cap": 1.0})):
        make_trainer("grpo", output_dir=str(tmp_path / str(i)), **TRAINED | {"max_steps": 2}, **settings).train()
        runs.append(read_history(tmp_path / str(i)))
    groups = group_runs(runs)
    name = "GRPO with credit own_functions.py:GroupWords"
    assert [group.label for group in groups] == ["GRPO", f"{name} (cap null)", f"{name} (cap 1.0)"]
    tables = settings_of_credit(groups), settings_beside_credit(groups)
    own = {"credit": "own_functions.py:GroupWords", "strength": 0.5, "cap": 1.0, "signs": [1, -1], "grows": False}
    assert tables[0]["GRPO"].items() >= dict.fromkeys(own).items()
    assert {name: x for name, x in tables[0][f"{name} (cap 1.0)"].items() if name in own} == own
    assert tables[1] == {group.label: {} for group in groups}


def test_a_grid_knows_which_runs_are_finished(tmp_path, make_trainer):
    grid = grid_of(tmp_path, "grpo", "s_trace", seeds=[0])
    assert write(grid) == "area"
    run, other = grid.verdict_runs()
    assert not run.is_finished and run.resumes_from == 0 and "--resume_from_checkpoint" not in run.command()
    make_trainer("grpo", output_dir=str(run.folder), **TRAINED).train()
    assert run.is_finished and not other.is_finished
    shutil.rmtree(run.folder / "checkpoint-4")
    assert not run.is_finished and run.resumes_from == 2
    assert run.command()[-2:] == ["--resume_from_checkpoint", "true"]
    (run.folder / "checkpoint-2" / "trainer_state.json").unlink()  # as a kill leaves it
    assert run.resumes_from == 0 and "--resume_from_checkpoint" not in run.command()
    write(grid_of(tmp_path, "grpo", "gspo", seeds=[0, 1]))  # more of them, in the same folder
    assert write(grid, primary="end") == "area"  # what was declared first stays
    record = json.loads((tmp_path / "grid.json").read_text())
    known = record["runs"]
    assert record["primary"] == "area" and {run["phase"] for run in known.values()} == {"verdict"}
    assert list(known) == ["grpo/seed-0", "s_trace/seed-0", "grpo/seed-1", "gspo/seed-0", "gspo/seed-1"]
    with pytest.raises(ValueError, match=r"other settings \(--beta null → 0.1\)"):
        write(grid_of(tmp_path, "grpo", seeds=[0], flags=["--beta", "0.1"]))
    (tmp_path / "grid.json").unlink()
    with pytest.raises(ValueError, match="holds a run that this comparison did not make"):
        write(grid)


def test_the_embedded_tasks_have_ten_seeds_by_default(tmp_path, tiny_model):
    assert grid_of(tmp_path, "grpo", seeds=None).seeds == list(range(10))
    assert grid_of(tmp_path, "grpo", seeds=None, flags=["--model_name_or_path", "demo_hum"]).seeds == list(range(10))
    other = ["--model_name_or_path", tiny_model, "--dataset_name", "demo"]
    assert grid_of(tmp_path, "grpo", seeds=None, flags=other).seeds == list(range(5))


# The table


def test_the_table_shows_every_run(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace", flags=QUICK)
    runs = grid.verdict_runs()
    progress = {
        "grpo/seed-0": Progress("finished", 6, 0.5, seconds=3),
        "grpo/seed-1": Progress("running", 4, 0.25, seconds=2),
        "s_trace/seed-0": Progress("failed", 1, error="it is [red]broken[/red]"),
        "s_trace/seed-1": Progress(),
    }
    console = Console(record=True, width=80, force_terminal=True, file=open(os.devnull, "w"))
    table = ProgressTable(runs, grid.steps, console=console)
    with table.live:
        table.show(progress)
        console.print(table.table(progress))
    text = console.export_text()
    # half a second per step: 2 steps of GRPO, 6 of S-trace
    assert "1 of 4 runs are finished; about 4 s left" in " ".join(text.split())
    assert re.search(r"GRPO\W+done 0\.50\W+4/6 0\.25", text) and re.search(r"S-trace\W+failed\W+·", text)
    assert table.failures(progress) == [f"s_trace/seed-0 failed at step 1: it is [red]broken[/red] ({runs[2].log})"]


def test_the_time_left_is_that_of_the_steps_left(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace", flags=["--max_steps", "100"])
    table = ProgressTable(grid.verdict_runs(), grid.steps, jobs=2)
    progress = {run.name: Progress() for run in table.runs}
    assert table.time_left(progress) == ""  # nothing is known
    progress["grpo/seed-0"] = Progress("running", 60, 0.5, seconds=20, first_step=50)  # 2 s a step, after a resume
    # 40 + 100 + 200 steps at 2 s, by two processes
    assert table.time_left(progress) == "; about 6 min left"
    progress["s_trace/seed-0"] = Progress("running", 10, 0.5, seconds=200)  # 20 s a step
    assert table.time_left(progress) == "; about 34 min left"
    progress |= {name: Progress("finished", 100) for name in list(progress)[:3]}
    assert table.time_left(progress) == ""
    progress["grpo/seed-0"] = Progress("finished", 100, seconds=10)
    assert table.time_left(progress) == "; about 10 s left"  # one run cannot be split


def test_without_a_terminal_lines_replace_the_table(tmp_path, capsys):
    grid = grid_of(tmp_path, "grpo", flags=QUICK)
    table = ProgressTable(grid.verdict_runs(), grid.steps)
    with table.live:
        for state in ("waiting", "running", "running"):
            table.show({run.name: Progress(state) for run in table.runs})
        for ended in (1, 2):
            states = ["finished"] * ended + ["running"] * (2 - ended)
            table.show(
                {
                    run.name: Progress(state, 6, 0.5, seconds=3) if state == "finished" else Progress(state)
                    for run, state in zip(table.runs, states, strict=True)
                }
            )
    assert capsys.readouterr().out.splitlines() == [
        "grpo/seed-0: running",
        "grpo/seed-1: running",
        "grpo/seed-0: finished at step 6, reward 0.500, 3 s; about 3 s left",
        "grpo/seed-1: finished at step 6, reward 0.500, 3 s",
    ]


# The real command


@pytest.mark.slow
def test_finished_runs_are_compared_without_training(call, capsys, make_trainer, tmp_path):
    folders = []
    for algo, seed in (("grpo", 0), ("grpo", 1), ("s_trace", 0)):
        folders.append(tmp_path / f"{algo}-{seed}")
        make_trainer(algo, output_dir=str(folders[-1]), seed=seed, **TRAINED).train()
    output = tmp_path / "out"
    capsys.readouterr()
    code, said, error = call("--runs", *folders, "--baseline", "s_trace", "--output_dir", output)
    assert (code, error) == (0, "")
    assert said.splitlines()[-2:] == [str(output / "report.md"), str(output / "report.html")]
    assert re.search(r"\| GRPO +\| no test +\| .0\.\d{3} +\|", said) and "No difference from S-trace is shown" in said
    markdown = re.sub(" +", " ", (output / "report.md").read_text(encoding="utf-8"))
    pattern = r"^\| (GRPO|S-trace|algorithm) \| ((?:token|eligible|importance) .*) \|$"
    rows = dict(re.findall(pattern, markdown, re.MULTILINE))
    head, trace, grpo = (rows[name].split(" | ") for name in ("algorithm", "S-trace", "GRPO"))
    assert "output_dir" not in head and {"importance", "selector", "trace_lambda"} <= set(head)
    found = {name: (x, y) for name, x, y in zip(head, grpo, trace, strict=True)}
    assert found["importance"] == ("token", "eligible") and found["trace_lambda"] == ("–", "0.9")
    assert "The primary metric was named when these runs were finished, not before." in markdown
    assert f"trl-credit compare --runs {folders[0]}" in markdown
    code, _, error = call("--runs", folders[0], folders[0], "--output_dir", output)
    assert code == 2 and "seed 0: leave out one" in error


def begin(folder: Path) -> subprocess.Popen:
    argv = ["--algo", "grpo", "s_trace", "--seeds", "0", "1", "--jobs", "1", "--output_dir", "out", *QUICK]
    return subprocess.Popen(
        [sys.executable, "-m", "trl_credit", "compare", *argv, "--save_steps", "2", "--trace_lambda", "0.8"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_an_interrupted_grid_resumes(tmp_path):
    process = begin(tmp_path)
    first, second = (tmp_path / "out" / "runs" / "grpo" / f"seed-{seed}" for seed in (0, 1))
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if any(second.glob("checkpoint-*/trainer_state.json")):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=200)
    assert process.returncode == 130, error
    assert "GRPO does not have trace_lambda: left out" in said
    assert re.search(r"interrupted \(Ctrl-C\): [12] of 4 runs are finished; go on with: trl-credit compare", error)
    assert not (tmp_path / "out" / "report.md").exists()
    weights = (first / "model.safetensors").stat().st_mtime_ns
    process = begin(tmp_path)
    said, error = process.communicate(timeout=400)
    assert process.returncode == 0, error
    assert re.search(r"^grpo/seed-1: (running from step [246]|finished before)$", said, re.MULTILINE)
    assert "grpo/seed-0: finished before" in said and (first / "model.safetensors").stat().st_mtime_ns == weights
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(run["label"], run["seed"], run["totals"]["steps"], run["phase"]) for run in numbers["runs"]] == [
        (label, seed, 6, "verdict") for label in ("GRPO", "S-trace") for seed in (0, 1)
    ]
    (row,) = compare_results(numbers, "area")
    assert row.label == "S-trace" and row.n == 2 and row.paired
    assert re.search(rf"\| S-trace .*\| 2 +\| {row.baseline:.3f} +\| {row.mean:.3f} +\|", said)
