"""`trl-credit compare`: the grid, its sweep and how it resumes, and real runs of the command."""

import json
import re
import shutil
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest
from custom_functions import custom

from trl_credit import ALGORITHMS
from trl_credit.cli import main
from trl_credit.lab.comparison import processes
from trl_credit.lab.comparison.entries import read_entries, read_equal, read_sweep
from trl_credit.lab.comparison.grid_settings import Shared, make_grid
from trl_credit.lab.comparison.results import tuned_rows
from trl_credit.lab.comparison.scoring import compare_results
from trl_credit.settings.arguments import parse_arguments


RATES = "learning_rate=1e-4,2e-5,5e-5"
TRAINED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.fixture
def call(command_said):
    """Runs `trl-credit compare`."""
    return partial(command_said, "compare")


def grid_of(folder, *algorithms, credit=(), seeds=(0, 1), config=(), flags=(), equal=(), sweep=None, tuning=(100, 101)):
    swept = None if sweep is None else read_sweep(sweep, tuning)
    shared = Shared(config, flags, read_equal(equal), swept)
    return make_grid(read_entries(algorithms, credit), seeds, shared, folder=folder)


def write(grid, runs=None, primary="area"):
    return grid.write(grid.verdict_runs() if runs is None else runs, primary=primary)


def flags_of(words):
    return {word: value for word, value in zip(words, words[1:], strict=False) if word.startswith("--")}


# The grid


def test_a_run_has_the_settings_that_its_algorithm_has(tmp_path):
    flags = ["--trace_lambda", "0.5", "--segment_advantage", "mean", "--learning_rate", "1e-4"]
    grid = grid_of(tmp_path, "grpo", "s_trace", "spo_tree", "r=s_trace --selector random", flags=flags)
    runs = grid.verdict_runs()
    assert [run.name for run in runs] == [f"{n}/seed-{s}" for n in ("grpo", "s_trace", "spo_tree", "r") for s in (0, 1)]
    left_out = {"GRPO": ["segment_advantage", "trace_lambda"], "SPO-tree": ["trace_lambda"]}
    assert grid.left_out == left_out | dict.fromkeys(("S-trace", "r"), ["segment_advantage"])
    words = flags_of(runs[6].words)
    assert words["--algo"] == "s_trace" and words["--selector"] == "random" and words["--trace_lambda"] == "0.5"
    assert words["--output_dir"] == str(tmp_path / "runs" / "r" / "seed-0") and words["--seed"] == "0"
    assert words["--logging_steps"] == words["--save_total_limit"] == "1" and "--segment_advantage" not in words
    assert all("--trace_lambda" not in run.words and "--learning_rate" in run.words for run in runs[:2])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="^low: trace_lambda=0.5 does nothing"):  # behind a name nothing is left out
        grid_of(tmp_path, "low=grpo --trace_lambda 0.5")


def test_settings_from_files_are_left_out_for_algorithms_that_lack_them(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("model_name_or_path: demo\nalgo: s_trace\noutput_dir: elsewhere\nmax_steps: 3\ntrace_lambda: 0.7\n")
    grid = grid_of(tmp_path, "grpo", "s_trace", config=[str(own)], flags=["--max_steps", "4"])
    assert grid.left_out == {"GRPO": ["trace_lambda"]} and [entry.steps for entry in grid.entries] == [4, 4]
    grpo, trace = (entry.settings for entry in grid.entries)
    assert trace == {"model_name_or_path": "demo", "max_steps": 3, "trace_lambda": 0.7}
    assert grpo == {"model_name_or_path": "demo", "max_steps": 3}
    write(grid)
    run = grid.verdict_runs()[2]
    assert flags_of(run.words)["--config"] == str(tmp_path / "settings" / "s_trace.yaml")
    assert parse_arguments(list(run.words)).args.trace_lambda == 0.7
    own.write_text(own.read_text().replace("trace_lambda: 0.7", "trace_lambda: 0.8"))
    other = grid_of(tmp_path, "s_trace", config=[str(own)], flags=["--max_steps", "4"])
    with pytest.raises(ValueError, match="was made with other settings .*0.7"):
        write(other)


def test_the_settings_of_a_class_are_settings_of_its_runs_alone(tmp_path):
    words = custom("GroupWords")
    file = tmp_path / "own.yaml"
    file.write_text("model_name_or_path: demo\ngrows: true\n")
    credit = [words, f"weak=s_trace+{words} --cap 2"]
    grid = grid_of(tmp_path, "grpo", credit=credit, seeds=[3], config=[str(file)], flags=["--strength", "0.7"])
    assert [run.name for run in grid.verdict_runs()] == ["grpo/seed-3", "GroupWords/seed-3", "weak/seed-3"]
    assert grid.left_out == {"GRPO": ["grows", "strength"]}
    assert [entry.settings.get("grows") for entry in grid.entries] == [None, True, True]
    grpo, plain, weak = (flags_of(run.words) for run in grid.verdict_runs())
    assert "--strength" not in grpo and plain["--strength"] == weak["--strength"] == "0.7"
    assert (weak["--algo"], weak["--credit"], weak["--cap"]) == ("s_trace", words, "2") and "--cap" not in plain
    swept = grid_of(tmp_path, "grpo", credit=[words], seeds=[0], sweep="strength=0.5,0.2")
    assert [run.name for run in swept.tuning_runs()[::2]] == [f"GroupWords/strength-{x}/seed-100" for x in (0.2, 0.5)]
    assert "--strength" in swept.verdict_runs({"GroupWords": "0.2"})[1].words
    with pytest.raises(ValueError, match="--equal strength=1 does nothing for GRPO"):
        grid_of(tmp_path, "grpo", credit=[words], equal=["strength=1"])


def test_a_grid_knows_which_runs_are_finished(tmp_path, finished_run):
    grid = grid_of(tmp_path, "grpo", "s_trace", seeds=[0])
    assert write(grid) == "area"
    run, other = grid.verdict_runs()
    assert not run.is_finished and "--resume_from_checkpoint" not in run.command()
    shutil.copytree(finished_run("grpo", **TRAINED).folder, run.output_dir)
    assert run.is_finished and not other.is_finished
    shutil.rmtree(run.output_dir / "checkpoint-4")
    assert not run.is_finished and run.command()[-2:] == ["--resume_from_checkpoint", "true"]
    (run.output_dir / "checkpoint-2" / "trainer_state.json").unlink()  # as a kill leaves it
    assert "--resume_from_checkpoint" not in run.command()
    write(grid_of(tmp_path, "grpo", "gspo", seeds=[0, 1]))  # more of them, in the same folder
    assert write(grid, primary="end") == "area"  # what was declared first stays
    record = json.loads((tmp_path / "grid.json").read_text())
    assert record["primary"] == "area" and {run["phase"] for run in record["runs"].values()} == {"verdict"}
    assert list(record["runs"]) == ["grpo/seed-0", "s_trace/seed-0", "grpo/seed-1", "gspo/seed-0", "gspo/seed-1"]
    with pytest.raises(ValueError, match="other settings"):
        write(grid_of(tmp_path, "grpo", seeds=[0], flags=["--beta", "0.1"]))
    (tmp_path / "grid.json").unlink()
    with pytest.raises(ValueError, match="a run that this comparison did not make"):
        write(grid)


def test_settings_are_held_equal(tmp_path):
    equal = ["beta=0", "advantage_floor=None", "num_iterations=1", "epsilon_high=0.3"]
    grid = grid_of(tmp_path, *(ALGORITHMS.keys() - {"kl_cov"}), equal=equal)
    for entry in grid.entries:
        args = parse_arguments(list(entry.words)).args
        values = (args.beta, args.advantage_floor, args.num_iterations, args.epsilon_high)
        assert values == (0.0, None, 1, 0.3), entry.name


# The sweep


def test_each_value_is_trained_on_the_tuning_seeds_and_the_best_on_the_others(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace", sweep=RATES)
    tuning = grid.tuning_runs()
    cells = [f"grpo/learning_rate-{rate}/seed-{seed}" for rate in ("2e-5", "5e-5", "1e-4") for seed in (100, 101)]
    assert [run.name for run in tuning[:6]] == cells
    assert len(tuning) == 12 and {run.phase for run in tuning} == {"tuning"} and tuning[0].value == 2e-5
    verdict = grid.verdict_runs({"GRPO": "1e-4", "S-trace": "2e-5"})
    best = [(label, value, seed) for label, value in (("GRPO", 1e-4), ("S-trace", 2e-5)) for seed in (0, 1)]
    assert [(run.entry.label, run.value, run.seed) for run in verdict] == best
    assert flags_of(verdict[0].words)["--learning_rate"] == "1e-4"


def test_seeds_of_tuning_and_verdict_are_disjoint(tmp_path):
    grid = grid_of(tmp_path, "grpo", sweep=RATES)
    write(grid, grid.tuning_runs())
    write(grid, grid.verdict_runs({"GRPO": "1e-4"}))
    later = grid_of(tmp_path, "grpo", seeds=(100, 2), sweep=RATES, tuning=(7, 8))  # in the same folder
    with pytest.raises(ValueError, match="grpo has seed-100 both for tuning and for the verdict"):
        write(later, later.tuning_runs())


def test_the_best_value_has_the_highest_mean_of_the_primary_metric():
    scores = {"a": {2e-4: [0.5, 0.5], 5e-5: [0.2, 0.3], 1e-4: [0.4, 0.9]}, "b": {5e-5: [0.3], 1e-4: [0.3], 2e-4: [0.1]}}
    runs = [
        {"label": label, "value": value, "phase": "tuning", "seed": 100 + i, "area": area, "end": -area}
        for label, by_value in scores.items()
        for value, areas in by_value.items()
        for i, area in enumerate(areas)
    ]
    a, b = tuned_rows({"primary": "area", "runs": runs})
    assert list(a.scores) == [5e-5, 1e-4, 2e-4] and a.scores[1e-4] == pytest.approx(0.65)
    assert (a.best, a.is_at_edge) == (1e-4, False)
    assert (b.best, b.is_at_edge) == (5e-5, True)  # the first of two
    assert [row.best for row in tuned_rows({"primary": "end", "runs": runs})] == [5e-5, 2e-4]


# The real command


@pytest.mark.slow
def test_finished_runs_are_compared_without_training(call, finished_run, tmp_path):
    folders = [finished_run(algo, seed=seed, **TRAINED).folder for algo, seed in (("grpo", 0), ("s_trace", 0))]
    code, out, error = call("--runs", *folders, "--baseline", "s_trace", "--output_dir", tmp_path)
    assert (code, error) == (0, "")
    assert out.splitlines()[-2:] == [str(tmp_path / "report.md"), str(tmp_path / "report.html")]
    assert re.search(r"\| GRPO +\| no test +\| .0\.\d{3} +\|", out) and "No difference from S-trace is shown" in out
    markdown = re.sub(" +", " ", (tmp_path / "report.md").read_text(encoding="utf-8"))
    pattern = r"^\| (GRPO|S-trace|algorithm) \| ((?:token|eligible|importance) .*) \|$"
    rows = dict(re.findall(pattern, markdown, re.MULTILINE))
    head, trace, grpo = (rows[name].split(" | ") for name in ("algorithm", "S-trace", "GRPO"))
    settings = {name: (x, y) for name, x, y in zip(head, grpo, trace, strict=True)}
    assert settings["importance"] == ("token", "eligible") and settings["trace_lambda"] == ("–", "0.9")
    assert "output_dir" not in head and f"trl-credit compare --runs {folders[0]}" in markdown
    code, _, error = call("--runs", folders[0], folders[0], "--output_dir", tmp_path)
    assert code == 2 and "seed 0: leave out one" in error


SMALL = ["--per_device_train_batch_size", "8", "--num_generations", "4", "--output_dir"]


def in_this_process(monkeypatch, trained):
    """Trains the runs of a grid without processes of their own, and adds their names to `trained`."""

    def train_all(runs, *, rows, jobs):
        for run in [run for run in runs if not run.is_finished]:
            trained.append(run.name)
            assert main(run.command()) == 0
        return []

    monkeypatch.setattr("trl_credit.lab.comparison.run.train_all", train_all)


@pytest.mark.slow
def test_an_interrupted_grid_resumes(call, tmp_path, monkeypatch):
    argv = ["--algo", "grpo", "s_trace", "--seeds", "0", "--jobs", "1", "--max_steps", "4", "--save_steps", "2"]
    argv += ["--trace_lambda", "0.8", *SMALL, tmp_path]
    first, second = (tmp_path / "runs" / algo / "seed-0" for algo in ("grpo", "s_trace"))

    def sleep(seconds):
        if any(second.glob("checkpoint-*/trainer_state.json")):
            signal.raise_signal(signal.SIGINT)
        time.sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        code, out, error = call(*argv)
    assert code == 130, error
    assert "GRPO does not have trace_lambda: left out" in out
    assert re.search(r"^grpo/seed-0: finished at step 4, reward [\d.]+, \d+ s$", out, re.MULTILINE)
    assert "go on with: trl-credit compare" in error and not (tmp_path / "report.md").exists()
    weights = (first / "model.safetensors").stat().st_mtime_ns
    code, out, error = call(*argv)
    assert code == 0, error
    assert re.search(r"^s_trace/seed-0: (running from step [24]|finished before)$", out, re.MULTILINE)
    assert "grpo/seed-0: finished before" in out and (first / "model.safetensors").stat().st_mtime_ns == weights
    numbers = json.loads((tmp_path / "results.json").read_text())
    runs = [(run["label"], run["totals"]["steps"], run["phase"]) for run in numbers["runs"]]
    assert runs == [("GRPO", 4, "verdict"), ("S-trace", 4, "verdict")]
    (row,) = compare_results(numbers, "area")
    assert row.label == "S-trace" and row.n == 1 and row.paired


@pytest.mark.slow
def test_a_sweep_is_tuned_judged_and_resumed(call, tmp_path, monkeypatch):
    """Its runs are trained in this process, which takes a tenth of the time."""
    trained = []

    in_this_process(monkeypatch, trained)
    argv = ["--algo", "grpo", "gspo", "--seeds", "0", "1", "--sweep", "learning_rate=1e-5,1e-3", "--max_steps", "2"]
    code, out, error = call(*argv, *SMALL, tmp_path)
    assert (code, error) == (0, "")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["phase"] for run in results["runs"]] == ["tuning"] * 8 + ["verdict"] * 4
    best = {row.label: row.best for row in tuned_rows(results)}
    assert {run["label"]: run["value"] for run in results["runs"] if run["phase"] == "verdict"} == best
    assert results["same_gradient"] == ["GSPO"] and "at the edge of the sweep: GRPO (" in out
    assert "best learning_rate: GRPO 1e-" in out and len(trained) == 12
    assert all(("/seed-10" in name) == (i < 8) for i, name in enumerate(trained))
    code, out, _ = call(*argv, *SMALL, tmp_path, "--primary", "end")
    assert code == 0 and len(trained) == 12
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "declared as area before these runs; this report uses end, chosen later." in page


@pytest.mark.slow
def test_a_run_that_fails_is_named_with_its_error_and_the_others_go_on(call, tmp_path):
    (tmp_path / "bad.py").write_text("def bad(config, tokens):\n    raise RuntimeError('no credit today')\n")
    argv = ["--algo", "grpo", "--credit", f"{tmp_path}/bad.py:bad", "--seeds", "0", "--max_steps", "1", "--jobs", "2"]
    code, out, error = call(*argv, *SMALL, tmp_path / "out")
    assert code == 1 and "bad/seed-0: failed" in out and "grpo/seed-0: finished at step 1" in out
    assert "bad/seed-0 failed at step 0" in error and "no credit today" in error
    assert "No finished run of bad." in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
