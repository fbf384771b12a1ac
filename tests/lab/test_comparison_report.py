"""The report of a comparison: its answer, its tables, which `results.json` gives again, and a page that is safe."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from comparison_helpers import IDENTITY, history, log_state
from viewer_helpers import Page

from trl_credit.lab.comparison.figures import LIGHT, draw_sweep
from trl_credit.lab.comparison.groups import make_group
from trl_credit.lab.comparison.histories import make_history
from trl_credit.lab.comparison.pages import Table, as_markdown
from trl_credit.lab.comparison.report import console_answer, report_blocks, write_report
from trl_credit.lab.comparison.results import Comparison, make_results
from trl_credit.lab.comparison.tables import secondary_blocks, sweep_blocks, verdict_table
from trl_credit.lab.comparison.tuning import TunedRow


SETTINGS = {
    "credit": None,
    "loss_type": "grpo",
    "beta": 0.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "top_entropy_quantile": 1.0,
    "policy_loss": "clip",
    "token_mask": "none",
    "loss_weight": "none",
    "selector": "none",
    "trace_lambda": 0.9,
    "gamma": 1.0,
    "importance": "token",
    "model": {"name": "m"},
}
TRACE = {"importance": "eligible"}


def runs_of(label, level, seeds, *, value=None, **identity):
    runs = []
    for seed in seeds:
        values = level + np.random.default_rng([seed, int(100 * level)]).normal(0, 0.02, 10)
        runs.append(
            history(values, seed=seed, folder=Path(f"runs/{seed}"), **SETTINGS | {"algorithm": label} | identity)
        )
    return make_group(label, runs, value)


def compared(*groups, **more):
    given = {"metric": "reward", "command": "trl-credit compare …", "left_out": {}} | more
    made = Comparison(tuple(groups), groups[0], **given)
    return made, make_results(made)


def markdown_of(*groups, **more):
    """A report as Markdown, without its figures and the padding of its tables."""
    return re.sub(" +", " ", as_markdown(report_blocks(*compared(*groups, **more)), folder="figures"))


@pytest.mark.slow  # 12 figures in two themes
def test_the_files_of_a_report(tmp_path):
    groups = runs_of("GRPO", 0.5, range(5)), runs_of("better", 0.8, range(5), **TRACE)
    tuned = [runs_of("GRPO", level, (100, 101), value=value) for value, level in ((1e-4, 0.4), (2e-4, 0.5))]
    made, results = compared(*groups, tuned=tuple(tuned), sweep="learning_rate")
    pages = write_report(made, results, tmp_path)
    assert [page.name for page in pages] == ["report.md", "report.html"]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stems = ("differences", "sweep", "steps", "prompts", "generated", "trained", "seconds")
    assert names == {f"{s}{d}.{kind}" for s in stems for d in ("", "-dark") for kind in ("png", "svg")}


@pytest.mark.parametrize("with_baseline", [True, False])
def test_a_sweep_of_many_algorithms_has_a_panel_for_each_with_the_baseline_behind_it(with_baseline):
    labels = [*(["GRPO"] if with_baseline else []), *"abcde"]
    rows = [TunedRow(label, {1e-4: 0.1 * i, 2e-4: 0.2}, 2e-4, True) for i, label in enumerate(labels)]
    figure = draw_sweep(rows, setting="learning_rate", score="area", baseline="GRPO", theme=LIGHT)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title("left") for panel in panels] == list("abcde")
    for panel in panels:
        lines = {line.get_label(): list(line.get_ydata()) for line in panel.get_lines() if len(line.get_xdata()) > 1}
        own = panel.get_title("left")
        assert list(lines) == [*(["GRPO"] if with_baseline else []), own]
        assert lines[own] == [0.1 * labels.index(own), 0.2]


def test_the_answer_stands_on_top():
    groups = [runs_of(n, x, range(5), **TRACE) for n, x in (("better", 0.8), ("worse", 0.2))]
    markdown = markdown_of(runs_of("GRPO", 0.5, range(5)), *groups, left_out={"GRPO": ["trace_lambda"]})
    title, said, figure, *_ = markdown.split("\n\n")
    assert title == "# GRPO · better · worse" and figure.startswith("![Difference of each algorithm from GRPO")
    assert re.match(r"better \(\+0\.\d+ \\\[0\.\d+, 0\.\d+\\\]\) is above GRPO; worse \(−0\.\d+ ", said)
    assert said.endswith("comparisons). A difference is shown for every algorithm that was compared.")
    headings = re.findall(r"^## (.*)$", markdown, re.MULTILINE)
    assert headings == [
        "What differs beside the credit",
        "Verdict",
        "Other scores of the same runs",
        "Curves",
        "Cost of a run",
        "Settings of the credit",
        "How this was made",
    ]
    assert "Nothing: all settings beside the credit agree." in markdown
    assert "| algorithm | importance | trace_lambda |" in markdown
    assert "| better | eligible | 0.9 |" in markdown and "| GRPO | token | – |" in markdown
    assert "GRPO has no trace_lambda." in markdown and "15 runs of 3 algorithms, 5 each." in markdown


def test_only_the_primary_metric_has_verdicts():
    groups = runs_of("GRPO", 0.5, range(5)), runs_of("better", 0.8, range(5), **TRACE)
    _, results = compared(*groups, primary="end")
    assert verdict_table(results).head[1] == "verdict" and verdict_table(results).rows[0][1] == "above"
    tables = [block for block in secondary_blocks(results) if isinstance(block, Table)]
    assert len(tables) == 3 and not any({"verdict", "p"} & set(table.head) for table in tables)
    markdown = markdown_of(*groups, primary="end")
    assert "The primary metric is reward at the end." in markdown
    assert "The same runs, scored again" in markdown and markdown.count("| above |") == 1


def test_settings_beside_the_credit_are_the_first_table():
    twice = {"beta": 0.04, "num_iterations": 2, "generation_batch_size": 16, "epsilon_high": 0.3, **TRACE}
    markdown = markdown_of(runs_of("GRPO", 0.5, range(3)), runs_of("other", 0.5, range(3), **twice))
    table = markdown[markdown.index("\n| ") + 1 :].splitlines()
    assert table[0] == "| algorithm | beta | epsilon_high | updates per batch |"
    assert table[2:4] == ["| GRPO | 0.0 | 0.2 | 1 |", "| other | 0.04 | 0.3 | 4 |"]
    assert compared(runs_of("a", 0.5, [0]), runs_of("b", 0.5, [0], **twice))[1]["settings"]["b"]["beta"] == 0.04


def test_the_tables_are_made_again_from_the_file():
    groups = [runs_of("GRPO", 0.5, range(5)), runs_of("same", 0.5, range(5), importance="sequence", epsilon=3e-4)]
    groups.append(runs_of("better", 0.8, range(5), **TRACE))
    tuned = [runs_of(g.label, 0.4 + i / 10, (100, 101), value=10.0**-i) for g in groups for i in (3, 4, 5)]
    made, results = compared(*groups, tuned=tuple(tuned), sweep="learning_rate")
    again = json.loads(json.dumps(results))
    assert again["version"] == 2 and again["same_gradient"] == ["same"]
    assert {"label": "GRPO", "value": 1e-3, "phase": "tuning", "seed": 100}.items() <= again["runs"][0].items()
    shown = [block for block in report_blocks(made, results) if isinstance(block, Table)]
    made_again = [verdict_table(again), *secondary_blocks(again), *sweep_blocks(again)]
    assert all(table in shown for table in made_again if isinstance(table, Table))
    assert console_answer(again) == console_answer(results)
    assert verdict_table(again).rows[0][1:5:3] == ["same gradient", "–"]


def test_few_runs_and_equal_runs_have_no_interval():
    markdown = markdown_of(runs_of("GRPO", 0.5, [0]), runs_of("better", 0.9, [0], **TRACE))
    assert "No interval for better: it takes two seeds, and differences that are not all equal." in markdown
    assert re.search(r"\| better \| no test \| \+0\.\d+ \| – \| – \| – \| – \| 1 \|", markdown)
    old_log = {"credit/trained_tokens_per_row": None}
    flat = [make_group(n, [history([x] * 3, seed=s, log=old_log) for s in range(3)]) for n, x in (("a", 1), ("b", 2))]
    markdown = markdown_of(*flat)
    assert "| b | no test | +1.000 | – | – | – | – | 3 | 1.000 | 2.000 |" in markdown
    assert "There is no curve against trained tokens" in markdown
    alone = markdown_of(runs_of("GRPO", 0.5, [0]))
    assert "1 run of one algorithm." in alone and "Nothing is compared with GRPO: there is no other algorithm" in alone


def test_other_tasks_and_unfinished_runs_are_reported():
    group = runs_of("b", 0.5, range(3), model={"name": "other"})
    late = make_history({**log_state([1.0]), "max_steps": 10}, IDENTITY | {"seed": 9})
    groups = runs_of("GRPO", 0.5, range(3)), make_group("b", [*group.runs, late])
    markdown = markdown_of(*groups, remarks=("One failed.",))
    assert "Different tasks: the model of GRPO is not that of b." in markdown and "* One failed." in markdown
    assert "Not finished: . (1 of 10 steps)." in markdown


@pytest.mark.slow
def test_the_page_runs_nothing_and_loads_nothing(tmp_path):
    bad = "<script>alert(1)</script>|`**x**`$"
    groups = runs_of("GRPO", 0.5, range(3)), runs_of(bad, 0.6, range(3), **TRACE)
    paths = write_report(*compared(*groups, command=f"trl-credit {bad}"), tmp_path)
    markdown, page = (path.read_text(encoding="utf-8") for path in paths)
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
