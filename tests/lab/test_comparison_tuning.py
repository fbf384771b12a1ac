"""A sweep on tuning seeds, settings that are held equal, and algorithms that share the baseline's gradient."""

import json
import re
from functools import partial

import pytest
from comparison_helpers import IDENTITY

from trl_credit import ALGORITHMS
from trl_credit.lab.comparison.entries import read_entries, read_equal, read_sweep
from trl_credit.lab.comparison.grid_file import write_grid
from trl_credit.lab.comparison.grid_settings import Shared, make_grid
from trl_credit.lab.comparison.same_gradient import has_same_gradient
from trl_credit.lab.comparison.tuning import edge_warnings, in_short, tuned_rows
from trl_credit.runs.identity import _settings
from trl_credit.settings.arguments import parse_arguments


RATES = "learning_rate=1e-4,2e-5,5e-5"


@pytest.fixture
def call(command_said):
    """Runs `trl-credit compare`."""
    return partial(command_said, "compare")


def grid_of(folder, *algorithms, seeds=(0, 1), sweep=RATES, tuning=(100, 101), equal=(), flags=()):
    swept = None if sweep is None else read_sweep(sweep, tuning)
    return make_grid(read_entries(algorithms, []), seeds, Shared((), flags, read_equal(equal), swept), folder=folder)


# The sweep


def test_each_value_is_trained_on_the_tuning_seeds_and_the_best_on_the_others(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace")
    tuning = grid.tuning_runs()
    assert [run.name for run in tuning[:4]] == [
        *(f"grpo/learning_rate-2e-5/seed-{seed}" for seed in (100, 101)),
        *(f"grpo/learning_rate-5e-5/seed-{seed}" for seed in (100, 101)),
    ]
    assert len(tuning) == 12 and {run.phase for run in tuning} == {"tuning"} and tuning[0].value == 2e-5
    verdict = grid.verdict_runs({"GRPO": "1e-4", "S-trace": "2e-5"})
    assert [(run.entry.label, run.value, run.seed) for run in verdict] == [
        *(("GRPO", 1e-4, seed) for seed in (0, 1)),
        *(("S-trace", 2e-5, seed) for seed in (0, 1)),
    ]
    words = verdict[0].words
    assert words[words.index("--learning_rate") + 1] == "1e-4" and words.count("--learning_rate") == 1


def test_an_algorithm_without_the_swept_setting_runs_as_it_is(tmp_path):
    grid = grid_of(tmp_path, "grpo", "s_trace", sweep="trace_lambda=0.5,0.9")
    assert {run.entry.label for run in grid.tuning_runs()} == {"S-trace"}
    assert grid.left_out == {"GRPO": ["trace_lambda"]}
    grpo, trace = grid.verdict_runs({"S-trace": "0.5"})[::2]
    assert grpo.name == "grpo/seed-0" and grpo.value is None and "--trace_lambda" not in grpo.words
    assert trace.name == "s_trace/trace_lambda-0.5/seed-0"
    with pytest.raises(ValueError, match="--sweep trace_lambda does nothing for any of these algorithms"):
        grid_of(tmp_path, "grpo", sweep="trace_lambda=0.5,0.9")


def test_seeds_of_tuning_and_verdict_are_disjoint(tmp_path):
    with pytest.raises(ValueError, match="seed 1 is in --seeds and in --tuning_seeds: .* use other seeds"):
        grid_of(tmp_path, "grpo", tuning=(1, 100))
    grid = grid_of(tmp_path, "grpo")
    write_grid(grid, grid.tuning_runs(), primary="area")
    write_grid(grid, grid.verdict_runs({"GRPO": "1e-4"}), primary="area")
    later = grid_of(tmp_path, "grpo", seeds=(100, 2), tuning=(7, 8))  # in the same folder
    write_grid(later, later.tuning_runs(), primary="area")
    with pytest.raises(ValueError, match="grpo has seed-100 both for tuning and for the verdict"):
        write_grid(later, later.verdict_runs({"GRPO": "5e-5"}), primary="area")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sweep", "learning_rate"], "--sweep 'learning_rate': write NAME=VALUE"),
        (["--sweep", "learning_rate=1e-4"], "give at least two different values"),
        (["--sweep", "learning_rate=1e-4,0.0001"], "give at least two different values"),
        (["--sweep", "learning_rate=1e-4,,2e-4"], "give at least two different values"),
        (["--sweep", RATES, "--tuning_seeds", "7"], "--tuning_seeds needs at least two different seeds"),
        (["--sweep", RATES, "--tuning_seeds", "7", "7"], "--tuning_seeds needs at least two different seeds"),
        (["--sweep", RATES, "--seeds", "100", "3"], "seed 100 is in --seeds and in --tuning_seeds"),
        (["--tuning_seeds", "7", "8"], "--tuning_seeds does nothing without --sweep"),
        (["--sweep", "seed=1,2"], "--seed is set by the comparison"),
        (["--sweep", "learning_rate=1e-4,fast"], "grpo: --learning_rate: invalid float value: 'fast'"),
        (["--sweep", "lerning_rate=1,2"], "grpo: unknown flag '--lerning_rate': did you mean '--learning_rate'?"),
        (["--sweep", RATES, "--learning_rate", "1e-5"], "learning_rate is set twice"),
        (["--sweep", RATES, "--equal", "learning_rate=1e-5"], "learning_rate is set twice"),
        (["--equal", "beta"], "--equal 'beta': write NAME=VALUE"),
        (["--equal", "beta=0", "beta=1"], "--equal names beta twice"),
        (["--equal", "trace_lambda=0.5"], "grpo: --equal trace_lambda=0.5 does nothing for GRPO: leave it out"),
        (["--equal", "push_to_hub=true"], "--push_to_hub: a comparison pushes nothing"),
        (["--equal", "beta=much"], "grpo: --beta: invalid float value: 'much'"),
        (["--algo", "x=grpo --beta 0.1", "--equal", "beta=0"], "x: --beta is also in --equal: leave out one"),
        (["--primary", "best"], "--primary: invalid choice: 'best'"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, argv, message, tmp_path):
    code, said, error = call("--algo", "grpo", *argv, "--output_dir", tmp_path)
    assert (code, said) == (2, "") and message in error
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def results_of(scores, **more):
    """Results of tuning: label → value → score by seed."""
    runs = [
        {"label": label, "value": value, "phase": "tuning", "seed": 100 + i, "area": area, "end": -area}
        for label, by_value in scores.items()
        for value, areas in by_value.items()
        for i, area in enumerate(areas)
    ]
    return {"primary": "area", "sweep": "learning_rate", "runs": runs} | more


def test_the_best_value_has_the_highest_mean_of_the_primary_metric():
    scores = {"a": {2e-4: [0.5, 0.5], 5e-5: [0.2, 0.3], 1e-4: [0.4, 0.9]}, "b": {5e-5: [0.3], 1e-4: [0.3], 2e-4: [0.1]}}
    a, b = tuned_rows(results_of(scores))
    assert list(a.scores) == [5e-5, 1e-4, 2e-4] and a.scores[1e-4] == pytest.approx(0.65)
    assert (a.best, a.is_at_edge) == (1e-4, False)
    assert (b.best, b.is_at_edge) == (5e-5, True)  # the first of two
    assert edge_warnings(results_of(scores)) == [
        "The best value is at the edge of the sweep: b (5e-5). A better one may lie beyond: widen it."
    ]
    assert [row.best for row in tuned_rows(results_of(scores, primary="end"))] == [5e-5, 2e-4]
    texts = results_of({"a": {"grpo": [0.1], "dapo": [0.2]}})
    assert tuned_rows(texts)[0].best == "dapo" and edge_warnings(texts) == []


@pytest.mark.parametrize(
    ("value", "text"), [(1e-4, "1e-4"), (2.5e-5, "2.5e-5"), (0.5, "0.5"), (16.0, "16"), ("x", "x")]
)
def test_a_value_in_short(value, text):
    assert in_short(value) == text


# Settings held equal


def test_settings_are_held_equal(tmp_path):
    equal = ["beta=0", "advantage_floor=None", "num_iterations=1", "epsilon_high=0.3"]
    with pytest.raises(ValueError, match="kl_cov: epsilon_high=0.3 with KLCovConfig: its loss is not clipped"):
        grid_of(tmp_path, "grpo", "kl_cov", sweep=None, equal=equal)
    grid = grid_of(tmp_path, *(ALGORITHMS.keys() - {"kl_cov"}), sweep=None, equal=equal)
    for name, words in grid.words.items():
        args = parse_arguments(list(words)).args
        found = (args.beta, args.advantage_floor, args.num_iterations, args.epsilon_high)
        assert found == (0.0, None, 1, 0.3), name
    preset = parse_arguments(list(grid_of(tmp_path, "grpo_lambda", sweep=None).words["grpo_lambda"])).args
    assert (preset.beta, preset.advantage_floor) == (0.04, -0.1)


# Same gradients


def identity_of(algo, *flags):
    args = parse_arguments(["--algo", algo, *flags]).args
    sizes = {name: getattr(args, name) for name in ("generation_batch_size", "num_iterations")}
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return IDENTITY | _settings(args) | sizes | {"batch_size": rows, "algorithm": algo}


def test_of_the_presets_gspo_alone_has_grpos_gradient():
    base = identity_of("grpo")
    same = [algo for algo in ALGORITHMS if has_same_gradient(identity_of(algo), base)]
    assert same == ["grpo", "gspo", "gspo_token"]


@pytest.mark.parametrize(
    ("algo", "flags", "shared", "expected"),
    [
        ("p_trace", ["--trace_lambda", "0"], [], False),  # by its β
        ("p_trace", ["--trace_lambda", "0", "--beta", "0"], [], True),
        ("p_trace", ["--trace_lambda", "0.01", "--beta", "0"], [], False),
        ("s_trace", ["--selective_rate", "0", "--beta", "0"], [], True),
        ("gspo", [], ["--num_iterations", "2"], False),
        ("gspo", [], ["--steps_per_generation", "4", "--gradient_accumulation_steps", "2"], False),
        ("gspo", [], ["--beta", "0.1"], True),
        ("gspo", [], ["--beta", "0.1", "--use_bias_correction_kl", "True"], False),
        ("gspo", [], ["--loss_type", "dapo"], True),
        ("gspo", ["--learning_rate", "1e-3"], [], False),
        ("grpo", ["--epsilon", "0.1"], [], True),
        ("grpo", ["--epsilon", "0.1"], ["--num_iterations", "2"], False),
        ("grpo", ["--advantage_floor", "-0.1"], [], False),
        ("grpo", [], ["--num_iterations", "2"], True),  # the same settings
    ],
)
def test_a_gradient_is_the_baselines_if_every_ratio_is_one(algo, flags, shared, expected):
    assert has_same_gradient(identity_of(algo, *flags, *shared), identity_of("grpo", *shared)) is expected


def test_a_swept_setting_is_no_other_gradient_and_an_old_log_claims_nothing():
    pair = identity_of("gspo", "--learning_rate", "1e-3"), identity_of("grpo")
    assert has_same_gradient(*pair, swept="learning_rate") and not has_same_gradient(*pair)
    assert not has_same_gradient(IDENTITY, IDENTITY)


# The real command


@pytest.mark.slow
def test_a_sweep_is_tuned_judged_and_resumed(call, tmp_path):
    argv = ["--algo", "grpo", "gspo", "--seeds", "0", "1", "--sweep", "learning_rate=1e-5,1e-3", "--jobs", "2"]
    argv += ["--max_steps", "2", "--per_device_train_batch_size", "8", "--num_generations", "4"]
    code, said, error = call(*argv, "--output_dir", tmp_path)
    assert (code, error) == (0, "")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["phase"] for run in results["runs"]] == ["tuning"] * 8 + ["verdict"] * 4
    best = {row.label: row.best for row in tuned_rows(results)}
    assert {run["label"]: run["value"] for run in results["runs"] if run["phase"] == "verdict"} == best
    assert results["same_gradient"] == ["GSPO"]
    assert "GSPO has GRPO's gradient with one update per batch" in said and "at the edge of the sweep: GRPO (" in said
    lines = said.splitlines()
    chosen = next(i for i, line in enumerate(lines) if line.startswith("best learning_rate: GRPO 1e-"))
    before, after = lines[:chosen], lines[chosen:]
    assert not any("/seed-0" in line for line in before) and not any("/seed-100" in line for line in after)
    assert re.search(r"\| GSPO +\| same gradient +\|", said)
    code, said, _ = call(*argv, "--output_dir", tmp_path, "--primary", "end")
    assert code == 0 and said.count(": finished before") == 12
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "declared as area before these runs; this report uses end, chosen later." in page
