"""`trl-credit compare`: the grid and how it resumes, its progress, and its report."""

import html
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

import numpy as np
import pytest
from comparison_helpers import IDENTITY, history, log_state
from rich.console import Console
from scripts import ROOT
from viewer_helpers import Page

from trl_credit.lab.comparison.grid import make_grid, read_entries, write_grid
from trl_credit.lab.comparison.groups import make_group
from trl_credit.lab.comparison.histories import make_history
from trl_credit.lab.comparison.live_table import ProgressTable
from trl_credit.lab.comparison.pages import as_markdown
from trl_credit.lab.comparison.processes import Progress
from trl_credit.lab.comparison.report import Comparison, report_blocks, write_report
from trl_credit.lab.comparison.scoring import score_tables


QUICK = ["--max_steps", "6", "--per_device_train_batch_size", "8", "--num_generations", "4"]
TRAINED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.fixture
def call(command_said):
    """Runs `trl-credit compare`."""
    return partial(command_said, "compare")


def grid_of(folder, *algorithms, credit=(), seeds=(0, 1), config=(), flags=()):
    return make_grid(read_entries(algorithms, credit), seeds, config=config, flags=flags, folder=folder)


def flags_of(words):
    return {word: value for word, value in zip(words, words[1:], strict=False) if word.startswith("--")}


# The grid


def test_a_run_has_the_settings_that_its_algorithm_has(tmp_path):
    flags = ["--trace_lambda", "0.5", "--segment_advantage", "mean", "--learning_rate", "1e-4"]
    grid = grid_of(tmp_path, "grpo", "s_trace", "spo_tree", "r=s_trace --selector random", flags=flags)
    assert [run.name for run in grid.runs[::2]] == [f"{n}/seed-0" for n in ("grpo", "s_trace", "spo_tree", "r")]
    assert [run.seed for run in grid.runs] == [0, 1] * 4
    assert grid.left_out == {
        "GRPO": ["segment_advantage", "trace_lambda"],
        "S-trace": ["segment_advantage"],
        "SPO-tree": ["trace_lambda"],
        "r": ["segment_advantage"],
    }
    words = flags_of(grid.runs[6].words)
    assert words["--algo"] == "s_trace" and words["--selector"] == "random" and words["--trace_lambda"] == "0.5"
    assert words["--output_dir"] == str(tmp_path / "runs" / "r" / "seed-0") and words["--seed"] == "0"
    assert words["--logging_steps"] == words["--save_total_limit"] == "1" and "--segment_advantage" not in words
    assert all("--trace_lambda" not in run.words and "--learning_rate" in run.words for run in grid.runs[:2])
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
    write_grid(grid, tmp_path)
    file = Path(flags_of(grid.runs[0].words)["--config"])
    assert file == tmp_path / "settings" / "grpo.yaml" and "trace_lambda" not in file.read_text()
    own.write_text(own.read_text().replace("trace_lambda: 0.7", "trace_lambda: 0.8"))
    other = grid_of(tmp_path, "s_trace", config=[str(own)], flags=["--max_steps", "4"])
    with pytest.raises(ValueError, match="was made with other settings \\(trace_lambda 0.7 → 0.8\\)"):
        write_grid(other, tmp_path)


def test_a_custom_function_is_an_algorithm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def half(config, tokens):\n    raise NotImplementedError\n")
    grid = grid_of(tmp_path, "grpo", credit=["mine.py:half", "again=mine.py:half"], seeds=[3], flags=["--gamma", "0.9"])
    assert [run.name for run in grid.runs] == ["grpo/seed-3", "half/seed-3", "again/seed-3"]
    assert flags_of(grid.runs[1].words)["--credit"] == "mine.py:half"
    assert grid.left_out == {"GRPO": ["gamma"]}  # a function may read any knob


def test_a_grid_knows_which_runs_are_finished(tmp_path, make_trainer):
    grid = grid_of(tmp_path, "grpo", "s_trace", seeds=[0])
    write_grid(grid, tmp_path)
    run, other = grid.runs
    assert not run.is_finished and run.resumes_from == 0 and "--resume_from_checkpoint" not in run.command()
    make_trainer("grpo", output_dir=str(run.folder), **TRAINED).train()
    assert run.is_finished and not other.is_finished
    shutil.rmtree(run.folder / "checkpoint-4")
    assert not run.is_finished and run.resumes_from == 2
    assert run.command()[-2:] == ["--resume_from_checkpoint", "true"]
    (run.folder / "checkpoint-2" / "trainer_state.json").unlink()  # as a kill leaves it
    assert run.resumes_from == 0 and "--resume_from_checkpoint" not in run.command()
    write_grid(grid_of(tmp_path, "grpo", "gspo", seeds=[0, 1]), tmp_path)  # more of them, in the same folder
    known = json.loads((tmp_path / "grid.json").read_text())["runs"]
    assert list(known) == ["grpo/seed-0", "s_trace/seed-0", "grpo/seed-1", "gspo/seed-0", "gspo/seed-1"]
    with pytest.raises(ValueError, match=r"other settings \(--beta null → 0.1\)"):
        write_grid(grid_of(tmp_path, "grpo", seeds=[0], flags=["--beta", "0.1"]), tmp_path)
    (tmp_path / "grid.json").unlink()
    with pytest.raises(ValueError, match="holds a run that this comparison did not make"):
        write_grid(grid, tmp_path)


# The table


def test_the_table_shows_every_run(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace", flags=QUICK)
    progress = {
        "grpo/seed-0": Progress("finished", 6, 0.5, seconds=3),
        "grpo/seed-1": Progress("running", 4, 0.25),
        "s_trace/seed-0": Progress("failed", 1, error="it is [red]broken[/red]"),
        "s_trace/seed-1": Progress(),
    }
    console = Console(record=True, width=80, force_terminal=True, file=open(os.devnull, "w"))
    table = ProgressTable(grid, console=console)
    with table.live:
        table.show(progress)
        console.print(table.table(progress))
    text = console.export_text()
    assert "1 of 4 runs are finished" in text
    assert re.search(r"GRPO\W+done 0\.50\W+4/6 0\.25", text) and re.search(r"S-trace\W+failed\W+·", text)
    assert table.failures(progress) == [
        f"s_trace/seed-0 failed at step 1: it is [red]broken[/red] ({grid.runs[2].log})"
    ]


def test_without_a_terminal_lines_replace_the_table(tmp_path, capsys):
    grid = grid_of(tmp_path, "grpo", flags=QUICK)
    table = ProgressTable(grid)
    with table.live:
        for state in ("waiting", "running", "running", "finished"):
            table.show({run.name: Progress(state, 6, 0.5, seconds=3) for run in grid.runs})
    assert capsys.readouterr().out.splitlines() == [
        "grpo/seed-0: running",
        "grpo/seed-1: running",
        "grpo/seed-0: finished at step 6, reward 0.500, 3 s",
        "grpo/seed-1: finished at step 6, reward 0.500, 3 s",
    ]


# The report


def runs_of(label, level, seeds, **identity):
    runs = []
    for seed in range(seeds):
        values = level + np.random.default_rng([seed, int(100 * level)]).normal(0, 0.02, 10)
        given = {"credit": None, "importance": "token", "model": {"name": "m"}, "algorithm": label, **identity}
        runs.append(history(values, seed=seed, folder=Path(f"runs/{seed}"), **given))
    return make_group(label, runs)


def without_padding(markdown):
    return re.sub(" +", " ", markdown)


def report(folder, *groups, **more):
    given = {"metric": "reward", "command": "trl-credit compare …", "left_out": {}} | more
    markdown, page = write_report(Comparison(tuple(groups), groups[0], **given), folder)
    return without_padding(markdown.read_text(encoding="utf-8")), page.read_text(encoding="utf-8")


def markdown_of(*groups, **more):
    """A report as Markdown, without its figures."""
    made = Comparison(tuple(groups), groups[0], **{"metric": "reward", "command": "…", "left_out": {}} | more)
    blocks = report_blocks(made, score_tables(made.groups, made.baseline))
    return without_padding(as_markdown(blocks, folder="figures"))


@pytest.mark.slow
def test_a_report_says_what_is_shown_and_what_is_not(tmp_path):
    groups = runs_of("GRPO", 0.5, 5), runs_of("same", 0.5, 5), runs_of("better", 0.8, 5), runs_of("worse", 0.2, 5)
    markdown, _ = report(tmp_path, *groups, left_out={"GRPO": ["trace_lambda"]})
    assert "* better: above GRPO, the intervals do not overlap." in markdown
    assert "* worse: below GRPO, the intervals do not overlap." in markdown
    assert "* same: no difference from GRPO shown, the intervals overlap." in markdown
    assert "With 5 runs of each, the intervals of two equal algorithms do not overlap about 2 % of the time" in markdown
    assert "GRPO has no trace_lambda." in markdown and "20 runs of 4 algorithms, 5 each." in markdown
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert list(numbers["tables"]) == ["steps", "mean", "prompts", "generated"] and len(numbers["runs"]) == 20
    better = numbers["tables"]["steps"]["rows"][2]
    assert better["improvement"] == 1.0 and better["improvement_interval"] is None  # a point
    assert better["interval"][0] <= better["middle"] <= better["interval"][1]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stems = ("scores", "steps", "prompts", "generated", "trained", "seconds")
    assert names == {f"{s}{d}.{kind}" for s in stems for d in ("", "-dark") for kind in ("png", "svg")}


def test_two_runs_have_no_interval():
    markdown = markdown_of(runs_of("GRPO", 0.5, 2), runs_of("better", 0.9, 5))
    assert "better: no difference shown: an interval needs 3 runs of each." in markdown
    assert "There are no intervals with fewer than 3 runs: GRPO (2)." in markdown
    assert "| GRPO | 2 | 0.5" in markdown and "too few runs to say" in markdown and "overlap" not in markdown
    alone = markdown_of(runs_of("GRPO", 0.5, 1))
    assert "1 run of one algorithm." in alone and "There are no intervals with fewer than 3 runs: GRPO (1)." in alone


def test_runs_that_score_the_same_have_no_interval():
    old_log = {"credit/trained_tokens_per_row": None}
    runs = [history([1.0] * 3, seed=seed, algorithm="flat", log=old_log) for seed in range(3)]
    markdown = markdown_of(runs_of("GRPO", 0.5, 3), make_group("flat", runs))
    assert "flat: no interval: all runs, or all of GRPO, score the same." in markdown
    assert "There is no curve against trained tokens" in markdown


def test_other_tasks_and_unfinished_runs_are_reported():
    group = runs_of("b", 0.5, 3, model={"name": "other"})
    late = make_history({**log_state([1.0]), "max_steps": 10}, IDENTITY | {"seed": 9})
    markdown = markdown_of(runs_of("GRPO", 0.5, 3), make_group("b", [*group.runs, late]), remarks=("One failed.",))
    assert "Different tasks: the model of GRPO is not that of b." in markdown and "* One failed." in markdown
    assert "Not finished: . (1 of 10 steps)." in markdown and "After 1 optimizer steps" in markdown


def test_the_page_runs_nothing_and_loads_nothing(tmp_path):
    bad = "<script>alert(1)</script>|`**x**`"
    markdown, page = report(tmp_path, runs_of("GRPO", 0.5, 3), runs_of(bad, 0.6, 3), command=f"trl-credit {bad}")
    parsed = Page(page)
    tags = {tag for tag, _ in parsed.tags}
    assert "script" not in tags and bad in html.unescape(page)
    policy = parsed.policy
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy
    sources = [a.get("src") or a.get("srcset") for t, a in parsed.tags if t in ("img", "source")]
    assert len(sources) == 12 and all(s.startswith("data:image/svg+xml;base64,") for s in sources)
    assert all(a["alt"] for t, a in parsed.tags if t == "img") and "http://" not in re.sub(r"base64,\S+", "", page)
    assert "style=" not in page  # which the policy would refuse
    assert r"\<script\>" in markdown.split("```")[0] and r"\|\`\*\*x\*\*\`" in markdown


@pytest.mark.slow
def test_finished_runs_are_compared_without_training(call, capsys, make_trainer, tmp_path):
    folders = []
    for algo, seed in (("grpo", 0), ("grpo", 1), ("s_trace", 0)):
        folders.append(tmp_path / f"{algo}-{seed}")
        make_trainer(algo, output_dir=str(folders[-1]), seed=seed, **TRAINED).train()
    output = tmp_path / "out"
    capsys.readouterr()
    code, said, error = call("--runs", *folders, "--baseline", "s_trace", "--output_dir", output)
    assert (code, error) == (0, "") and said.splitlines() == [str(output / "report.md"), str(output / "report.html")]
    markdown = without_padding((output / "report.md").read_text(encoding="utf-8"))
    assert "| GRPO | 2 |" in markdown and "| S-trace | 1 |" in markdown and "baseline |" in markdown
    assert "P(above S-trace)" in markdown and "| importance | token | eligible |" in markdown
    assert "| trace_lambda | – | 0.9 |" in markdown and "| output_dir |" not in markdown
    assert f"trl-credit compare --runs {folders[0]}" in markdown
    code, _, error = call("--runs", folders[0], folders[0], "--output_dir", output)
    assert code == 2 and "seed 0: leave out one" in error


# The real command


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
    assert [(run["algorithm"], run["seed"], run["steps"], run["finished"]) for run in numbers["runs"]] == [
        (label, seed, 6, True) for label in ("GRPO", "S-trace") for seed in (0, 1)
    ]
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "There are no intervals with fewer than 3 runs: GRPO (2), S-trace (2)." in markdown
