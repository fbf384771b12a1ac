"""What a comparison reads from logs, against what tiny runs did; groups, equal gradients, and the report."""

import html
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from comparison_helpers import IDENTITY, history, log_state
from custom_functions import custom
from viewer_helpers import Page

from trl_credit import ALGORITHMS, GRPOTrainer
from trl_credit.lab.comparison.groups import curve, group_runs, make_group, smoothed
from trl_credit.lab.comparison.histories import AXES, make_history, read_history
from trl_credit.lab.comparison.report import as_markdown, console_answer, verdict_table, write_report
from trl_credit.lab.comparison.results import Results, make_results
from trl_credit.lab.comparison.same_gradient import has_same_gradient
from trl_credit.lab.comparison.scoring import scored_runs
from trl_credit.lab.comparison.settings_tables import differing_settings
from trl_credit.runs.identity import _settings, functions_of, identity
from trl_credit.settings.arguments import parse_arguments


# Logs


class Counted:
    """Counts the tokens that a trainer's engine generates and that its loss trains on."""

    def __init__(self, trainer):
        self.generated = self.batches = self.trained = 0
        single, continued, loss = trainer._generate_single_turn, trainer.engine.continue_prefixes, trainer._compute_loss
        make = trainer.make_batch

        def make_batch(inputs):
            self.batches += 1
            return make(inputs)

        def generate(*args, **kwargs):
            sampled = single(*args, **kwargs)
            self.generated += sum(map(len, sampled[0]))
            return sampled

        def continue_prefixes(*args, **kwargs):
            before, rollouts = self.generated, continued(*args, **kwargs)  # whose calls of the engine may write more
            self.generated = before + sum(len(one.ids) for one in rollouts)
            return rollouts

        def compute_loss(model, inputs):
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            value = loss(model, inputs)
            self.trained += int((inputs.get("policy_mask", mask) * mask).sum())
            return value

        trainer._generate_single_turn, trainer.engine.continue_prefixes = generate, continue_prefixes
        trainer._compute_loss, trainer.make_batch = compute_loss, make_batch


UNALIGNED = {"logging_steps": 3, "num_iterations": 2, "gradient_accumulation_steps": 2}
UNALIGNED |= {"per_device_train_batch_size": 4, "max_steps": 6}


RUNS = {"responses": ("s_trace", {}), "chain": ("spo_chain", {}), "tree": ("spo_tree", {})}
RUNS |= {"chain-unaligned": ("spo_chain", UNALIGNED), "tree-unaligned": ("spo_tree", UNALIGNED)}


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "settings"), RUNS.values(), ids=RUNS)
def test_tokens_are_those_of_the_engine_and_of_the_loss(algo, settings, make_trainer):
    more = {"rollouts_per_state": 2} if algo == "spo_chain" else {}
    trainer = make_trainer(algo, **{"max_steps": 4, **settings, **more})
    counted = Counted(trainer)
    trainer.train()
    trainer.functions = getattr(trainer, "functions", None) or functions_of(trainer)
    logged = make_history(vars(trainer.state), identity(trainer))
    assert set(logged.totals) == set(AXES) and logged.totals["steps"] == trainer.args.max_steps and logged.is_finished
    assert logged.totals["generated"] == pytest.approx(counted.generated) and counted.generated > 0
    assert logged.totals["prompts"] == counted.batches * trainer.args.generation_batch_size // 4  # 4 rows per prompt
    assert logged.totals["trained"] == pytest.approx(counted.trained, abs=0.01)


def test_an_evaluation_is_placed_where_training_was():
    log = log_state([0.1, 0.2, 0.3])
    log["log_history"].insert(2, {"step": 2, "eval_demo/avg@4": 0.7, "eval_runtime": 3.0})
    logged = make_history(log, IDENTITY, metric="eval_demo/avg@4")
    assert logged.values.tolist() == [0.7] and logged.axes["generated"].tolist() == [160]
    assert logged.totals["steps"] == 3 and logged.at("steps", 3) == 0.7
    with pytest.raises(ValueError, match=r"logged no 'eval_demo/avg': did you mean 'eval_demo/avg@4'\?"):
        make_history(log, IDENTITY, metric="eval_demo/avg")


def test_axes_that_a_log_lacks_are_unknown():
    assert "trained" not in history([0.1, 0.2], log={"credit/trained_tokens_per_row": None}).axes
    assert "generated" not in history([0.1], rollouts="chain").axes
    chain = history([0.1], rollouts="chain", log={"credit/rollout_tokens": 50.0})
    assert chain.totals["generated"] == 130


def test_a_folder_without_a_log_is_refused(tmp_path):
    run = {"version": 1, "identity": IDENTITY, "lives": [{"from": 0, "id": "a"}]}
    for missing in ("credit_run.json", "checkpoint"):
        with pytest.raises(ValueError, match=missing):
            read_history(tmp_path)
        (tmp_path / "credit_run.json").write_text(json.dumps(run))


def test_scores_are_taken_at_the_point_that_all_runs_have_reached():
    a = make_group("a", [history(np.arange(20.0)), history(np.arange(20.0) + 1, seed=1)])
    b = make_group("b", [history(np.arange(10.0), log={"tokens": 40.0})])
    runs = scored_runs([a, b])
    assert [(run["label"], run["seed"]) for run in runs] == [("a", 0), ("a", 1), ("b", 0)]
    assert {run["phase"] for run in runs} == {"verdict"}
    assert [run["end"] for run in runs] == [9, 10, 9]  # to step 10: the last tenth is step 10
    assert [run["area"] for run in runs] == [4.5, 5.5, 4.5]
    assert [run["generated"] for run in runs] == [18.5, 19.5, 4]  # 1600 tokens: twenty steps of a, five of b
    assert [run["prompts"] for run in runs] == [9, 10, 9]
    assert runs[2]["totals"] == {"steps": 10, "prompts": 20, "generated": 3200, "trained": 560}


def test_curves_have_the_span_of_all_seeds():
    group = make_group("a", [history([0.0, 1.0, 2.0]), history([2.0, 1.0, 0.0], seed=1)])
    line = curve(group, "steps")
    assert line.x.tolist() == [1, 2, 3] and line.middle.tolist() == [1, 1, 1]
    assert line.low.tolist() == [0, 1, 0] and line.high.tolist() == [2, 1, 2]
    longer = history([0.0, 1.0, 2.0], log={"tokens": 20.0}, seed=1)
    uneven = curve(make_group("a", [history([0.0, 1.0, 2.0]), longer]), "generated", points=3)
    assert uneven.x.tolist() == [160, 200, 240]  # from the later first point to the earlier last one
    assert uneven.low.tolist() == [0, 0.25, 0.5] and uneven.high.tolist() == [1, 1.5, 2]
    values = np.random.default_rng(0).normal(size=60)
    expected = [values[max(0, i - 2) : i + 1].mean() for i in range(60)]  # a twentieth of 60 points, looking back
    np.testing.assert_allclose(smoothed(values), expected)


# Groups


def test_runs_are_grouped_by_algorithm_and_settings():
    data = {"rows": 4, "content": "x"}
    runs = [history([0.1], data=data), history([0.1], seed=1, data=data | {"content": "y"})]
    runs += [history([0.1], seed=s, algorithm="S-trace", trace_lambda=x) for x in (0.9, 0.5) for s in (0, 1)]
    groups = group_runs(runs)
    labels = ["GRPO", "S-trace (trace_lambda 0.9)", "S-trace (trace_lambda 0.5)"]
    assert [(group.label, group.seeds) for group in groups] == [(label, [0, 1]) for label in labels]
    with pytest.raises(ValueError, match="are runs of GRPO with seed 0: leave out one"):
        group_runs([runs[0], history([0.3], data=data)])


class PatientTrainer(GRPOTrainer):
    pass


def test_a_trainer_of_the_user_and_custom_credit_keep_their_names(make_trainer, finished_run, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    folders = [finished_run("grpo", **settings).folder]
    patient = ALGORITHMS["grpo"][0], PatientTrainer
    for algo, more in (
        (patient, {"baseline": custom("same_baseline")}),
        ("grpo", {"credit": custom("GroupWords"), "cap": 1.0}),
    ):
        folders.append(tmp_path / str(len(folders)))
        make_trainer(algo, output_dir=str(folders[-1]), **settings, **more).train()
    groups = group_runs([read_history(folder) for folder in folders])
    with_credit = "GroupWords on GRPO"
    assert [group.label for group in groups] == ["GRPO", "PatientTrainer", with_credit]
    own = {"credit": "own_functions.py:GroupWords", "strength": 0.5, "cap": 1.0}
    assert differing_settings(groups[::2], of_credit=True)[with_credit].items() >= own.items()
    assert differing_settings(groups[::2], of_credit=False) == {"GRPO": {}, with_credit: {}}
    grpo, patient = groups[0].runs[0], groups[1].runs[0]
    assert has_same_gradient(grpo, grpo) and not has_same_gradient(grpo, history([0.1], record=patient.record))


# Equal gradients


def run_of(algo, *flags):
    args = parse_arguments(["--algo", algo, *flags]).args
    sizes = {name: getattr(args, name) for name in ("generation_batch_size", "num_iterations")}
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    settings = IDENTITY | _settings(args) | sizes | {"batch_size": rows, "algorithm": algo}
    return SimpleNamespace(identity=settings, record={})


def test_of_the_presets_gspo_alone_has_grpos_gradient():
    base = run_of("grpo")
    assert [algo for algo in ALGORITHMS if has_same_gradient(run_of(algo), base)] == ["grpo", "gspo", "gspo_token"]


GRADIENTS = [
    ("gspo", [], ["--num_iterations", "2"], False),
    ("gspo", [], ["--steps_per_generation", "4", "--gradient_accumulation_steps", "2"], False),
    ("gspo", [], ["--beta", "0.1"], True),
    ("gspo", [], ["--beta", "0.1", "--use_bias_correction_kl", "True"], False),
    ("gspo", ["--learning_rate", "1e-3"], [], False),
    ("grpo", ["--epsilon", "0.1"], [], True),
    ("grpo", ["--epsilon", "0.1"], ["--num_iterations", "2"], False),
    ("grpo", ["--advantage_floor", "-0.1"], [], False),
    ("grpo", [], ["--num_iterations", "2"], True),  # the same settings
    ("p_trace", ["--beta", "0"], [], False),
    *(("grpo", ["--importance", x], [], True) for x in ("turn", "turn_token")),
    ("grpo", ["--trace_unit", "turn"], ["--importance", "eligible"], False),
    ("grpo", ["--trace_unit", "turn", "--importance", "eligible"], [], False),
    ("grpo", ["--turn_average", "true"], [], False),
]


@pytest.mark.parametrize(("algo", "flags", "shared", "expected"), GRADIENTS)
def test_a_gradient_is_the_baselines_if_every_ratio_is_one(algo, flags, shared, expected):
    run, base = run_of(algo, *flags, *shared), run_of("grpo", *shared)
    assert has_same_gradient(run, base) is expected
    assert has_same_gradient(run, base, swept="learning_rate") is (expected or "--learning_rate" in flags)


# The report


SETTINGS = {"credit": None, "loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, "epsilon_high": None}
SETTINGS |= {"policy_loss": "clip", "token_mask": "none", "loss_weight": "none", "selector": "none"}
SETTINGS |= {"trace_lambda": 0.9, "gamma": 1.0, "importance": "token", "model": {"name": "m"}}
TRACE = {"importance": "eligible"}


def runs_of(label, level, seeds, *, value=None, **identity):
    runs = []
    for seed in seeds:
        values = level + np.random.default_rng([seed, int(100 * level)]).normal(0, 0.02, 10)
        runs.append(history(values, seed=seed, **SETTINGS | {"algorithm": label} | identity))
    return make_group(label, runs, value)


def results_of(*groups, **more):
    return make_results(groups, groups[0].label, metric="reward", **{"command": "trl-credit compare …"} | more)


def markdown_of(*groups, **more):
    """A report as Markdown, without its figures and the padding of its tables."""
    return re.sub(" +", " ", as_markdown(results_of(*groups, **more)))


def test_the_answer_stands_on_top():
    groups = [runs_of(n, x, range(5), **TRACE) for n, x in (("better", 0.8), ("worse", 0.2))]
    markdown = markdown_of(runs_of("GRPO", 0.5, range(5)), *groups, left_out={"GRPO": ["trace_lambda"]})
    title, out, figure, *_ = markdown.split("\n\n")
    assert title == "# GRPO · better · worse" and figure.startswith("![Difference of each algorithm from GRPO")
    assert re.match(r"better \(\+0\.\d+ \\\[0\.\d+, 0\.\d+\\\]\) is above GRPO; worse \(−0\.\d+ ", out)
    assert ", ".join(re.findall(r"^## (.*)$", markdown, re.MULTILINE)) == (
        "What differs beside the credit, Verdict, Other scores of the same runs, Curves, Cost of a run, "
        "Settings of the credit, How this was made"
    )
    assert "Nothing: all settings beside the credit agree." in markdown
    assert "| better | eligible | 0.9 |" in markdown and "| GRPO | token | – |" in markdown
    assert "GRPO has no trace_lambda." in markdown


def test_settings_beside_the_credit_are_the_first_table():
    twice = {"beta": 0.04, "num_iterations": 2, "generation_batch_size": 16, "epsilon_high": 0.3, **TRACE}
    markdown = markdown_of(runs_of("GRPO", 0.5, range(3)), runs_of("other", 0.5, range(3), **twice))
    table = markdown[markdown.index("\n| ") + 1 :].splitlines()
    assert table[0] == "| algorithm | beta | epsilon_high | updates per batch |"
    assert table[2:4] == ["| GRPO | 0.0 | 0.2 | 1 |", "| other | 0.04 | 0.3 | 4 |"]


def test_the_tables_are_made_again_from_the_file():
    groups = [runs_of("GRPO", 0.5, range(5)), runs_of("same", 0.5, range(5), importance="sequence", epsilon=3e-4)]
    groups.append(runs_of("better", 0.8, range(5), **TRACE))
    tuned = [runs_of(g.label, 0.4 + i / 10, (100, 101), value=10.0**-i) for g in groups for i in (3, 4, 5)]
    results = results_of(*groups, tuned=tuned, sweep="learning_rate")
    again = Results(json.loads(json.dumps(results.content)))
    assert again.content["version"] == 2 and again.content["same_gradient"] == ["same"]
    first = {"label": "GRPO", "value": 1e-3, "phase": "tuning", "seed": 100}
    assert first.items() <= again.content["runs"][0].items()
    assert console_answer(again) == console_answer(results)
    assert verdict_table(again).rows[0][1:5:3] == ["same gradient", "–"]
    markdown = re.sub(" +", " ", as_markdown(results))
    assert re.search(r"\| GRPO \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 1e-5 \(edge\) \|", markdown)


def test_few_runs_and_equal_runs_have_no_interval():
    markdown = markdown_of(runs_of("GRPO", 0.5, [0]), runs_of("better", 0.9, [0], **TRACE))
    assert re.search(r"\| better \| no test \| \+0\.\d+ \| – \| – \| – \| – \| 1 \|", markdown)
    old_log = {"credit/trained_tokens_per_row": None}
    flat = [make_group(n, [history([x] * 3, seed=s, log=old_log) for s in range(3)]) for n, x in (("a", 1), ("b", 2))]
    markdown = markdown_of(*flat)
    assert "no test | +1.000 | – | – | – | – |" in markdown or "same gradient | +1.000" in markdown
    assert "There is no curve against trained tokens" in markdown
    assert "Nothing is compared with GRPO" in markdown_of(runs_of("GRPO", 0.5, [0]))


def test_other_tasks_and_unfinished_runs_are_reported():
    group = runs_of("b", 0.5, range(3), model={"name": "other"})
    late = make_history({**log_state([1.0]), "max_steps": 10}, IDENTITY | {"seed": 9})
    groups = runs_of("GRPO", 0.5, range(3)), make_group("b", [*group.runs, late])
    markdown = markdown_of(*groups, remarks=["One failed."])
    assert "Different tasks: the runs differ in model." in markdown and "* One failed." in markdown
    assert "Not finished: . (1 of 10 steps)." in markdown


@pytest.mark.slow  # its figures
def test_the_files_of_a_report_run_nothing_and_load_nothing(tmp_path):
    bad = "<script>alert(1)</script>|`**x**`$ {{ 7 }}"
    groups = runs_of("GRPO", 0.5, range(3)), runs_of(bad, 0.6, range(3), **TRACE)
    results = results_of(*groups, command=f"trl-credit {bad}")
    paths = write_report(results, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == results.content
    stems = ("differences", *AXES)
    figures = {f"{stem}.{kind}" for stem in stems for kind in ("pdf", "png", "svg")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == figures
    markdown, page = (path.read_text(encoding="utf-8") for path in paths)
    parsed = Page(page)
    tags = {tag for tag, _ in parsed.tags}
    assert "script" not in tags and bad in html.unescape(page)
    policy = parsed.policy
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy
    sources = [a.get("src") for t, a in parsed.tags if t == "img"]
    assert len(sources) == 6 and all(s.startswith("data:image/svg+xml;base64,") for s in sources)
    assert all(a["alt"] for t, a in parsed.tags if t == "img") and "http://" not in re.sub(r"base64,\S+", "", page)
    assert "style=" not in page  # which the policy would refuse
    assert r"\<script\>" in markdown.split("```")[0] and r"\|\`\*\*x\*\*\`" in markdown
