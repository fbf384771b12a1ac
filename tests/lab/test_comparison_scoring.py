"""Differences of algorithms from a baseline: pairs, families, the answer in words, and the files for other programs."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from comparison_helpers import history
from scipy import stats
from scripts import ROOT

from trl_credit.lab.comparison.answer import answer, notes
from trl_credit.lab.comparison.export import Table, write_tables
from trl_credit.lab.comparison.figures import draw_differences
from trl_credit.lab.comparison.groups import make_group
from trl_credit.lab.comparison.report import console_answer, write_report
from trl_credit.lab.comparison.results import Results, make_results
from trl_credit.lab.comparison.scoring import ScoreRow, compare_results
from trl_credit.lab.statistics import holm, sign_flip_p
from trl_credit.lab.tables import for_terminal, markdown_table


EMBEDDED = ROOT / "docs" / "results" / "embedded" / "results.json"


def results_of(scores, *, same=(), seeds=None, **more):
    """The content of a results file: label → the areas of its runs, seed by seed; the first label is the baseline."""
    runs = [
        {"label": label, "value": None, "phase": "verdict", "seed": seed, "area": float(area), "end": 0.0}
        for label, areas in scores.items()
        for seed, area in zip((seeds or {}).get(label, range(len(areas))), areas, strict=True)
    ]
    content = {"metric": "reward", "primary": "area", "baseline": next(iter(scores)), "same_gradient": list(same)}
    return content | {"sweep": None, "runs": runs} | more


def noisy(rng, effects, *, seeds=10, shared=0.0):
    """Scores with unit noise, and noise of this size that all algorithms share in a seed."""
    common = shared * rng.normal(size=seeds)
    return {f"a{i}": effect + common + rng.normal(size=seeds) for i, effect in enumerate(effects)}


def test_a_row_is_the_paired_t_test_of_its_seeds():
    rng = np.random.default_rng(0)
    scores = noisy(rng, [0, 1, 2], seeds=7)
    rows = compare_results(results_of(scores), "area")
    assert [row.label for row in rows] == ["a1", "a2"] and all(row.paired and row.n == 7 for row in rows)
    tests = [stats.ttest_rel(scores[row.label], scores["a0"]) for row in rows]
    for row, there in zip(rows, tests, strict=True):
        interval = there.confidence_interval()
        assert (row.p, row.low, row.high) == pytest.approx((there.pvalue, interval.low, interval.high))
        assert row.mean - row.baseline == pytest.approx(row.difference)
        assert row.flip_p == sign_flip_p(scores[row.label] - scores["a0"])
    assert [row.holm for row in rows] == pytest.approx(holm([there.pvalue for there in tests]))


def test_seeds_are_paired_where_they_match():
    scores = {"base": [1.0, 2.0, 3.0], "shifted": [5.0, 1.5, 2.4], "other": [2.0, 2.5, 9.0], "one": [1.0, 7.0]}
    seeds = {"base": [0, 1, 2], "shifted": [9, 0, 1], "other": [7, 8, 9], "one": [2, 5]}
    shifted, other, one = compare_results(results_of(scores, seeds=seeds), "area")
    assert shifted.paired and shifted.n == 2 and (shifted.baseline, shifted.mean) == (1.5, pytest.approx(1.95))
    there = stats.ttest_ind(scores["other"], scores["base"], equal_var=False)
    interval = there.confidence_interval()
    assert not other.paired and other.n == 3 and other.flip_p is None
    assert (other.p, other.low, other.high) == pytest.approx((there.pvalue, interval.low, interval.high))
    assert not one.paired and one.n == 2  # one seed in common is no pair to test
    lines = notes(Results(results_of(scores, seeds=seeds)))
    assert any(line.startswith("other and one: the seeds differ") for line in lines)


def test_the_baselines_gradient_is_not_in_the_family():
    scores = noisy(np.random.default_rng(2), [0, 0.9, 0.1, 0.1], seeds=5)
    one = compare_results(results_of(scores, same=["a2", "a3"]), "area")[0]
    assert one.holm == one.p  # a family of one
    same = compare_results(results_of(scores, same=["a2", "a3"]), "area")[1]
    assert same.holm is None and same.p is not None and same.verdict == "no test"
    assert compare_results(results_of(scores), "area")[0].holm > one.p
    assert "a2" in notes(Results(results_of(scores, same=["a2"])))[0]
    alone = answer(Results(results_of({"a0": [1.0], "a1": [1.0]}, same=["a1"])))
    assert alone[0].startswith("Nothing is compared with a0")


def test_runs_of_tuning_do_not_count():
    scores = noisy(np.random.default_rng(3), [0, 1], seeds=4)
    results = results_of(scores)
    more = [run | {"phase": "tuning", "seed": 100 + run["seed"], "area": 99.0} for run in results["runs"]]
    assert compare_results(results | {"runs": results["runs"] + more}, "area") == compare_results(results, "area")


# Words


def test_the_answer_has_two_sentences():
    base, equal = [0.0, 0.05, 0.0], [0.1, -0.1, 0.05]
    scores = {"GRPO": base, "good": [1.0, 1.1, 1.2], "bad": [-1.0, -1.1, -0.9], "equal": equal}
    first, second = answer(Results(results_of(scores)))
    assert first.startswith("good (+1.083 [0.8") and "; bad (−1.017 [−1." in first
    how = "3 paired seeds, mean reward over the run, 95 % intervals, Holm's correction for 3 comparisons"
    assert first.endswith(f"is below GRPO ({how}).")
    assert second.startswith("A difference is not shown for equal (+0.000 [−")
    first, _ = answer(Results(results_of({"GRPO": base, "equal": equal})))
    assert first.startswith("No difference from GRPO is shown (3 paired seeds")


def test_the_tables_of_the_published_runs():
    results = json.loads(Path(EMBEDDED).read_text(encoding="utf-8"))
    rows = {row.label: row for row in compare_results(results, "area")}
    assert [label for label, row in rows.items() if row.verdict == "above"] == ["GRPO-λ"]
    assert (rows["S-trace"].low, rows["S-trace"].high) == pytest.approx((-0.0186, -0.0023), abs=5e-5)
    assert rows["GSPO"].holm is None and sum(row.holm is not None for row in rows.values()) == 10
    out = console_answer(Results(results))
    assert "S-trace, HA-DW and Dr. GRPO: the interval excludes 0" in out
    assert "| GRPO-λ     | above         | +0.030     | [0.027, 0.034]   | 0.0002       |" in out


# Tables as LaTeX, CSV and Markdown, curves, and tables in a terminal


def group(label, *means, **identity):
    runs = [history([mean, mean + 0.1], seed=seed, **identity) for seed, mean in enumerate(means)]
    return make_group(label, runs)


def test_a_report_has_its_tables_and_curves_for_other_programs(tmp_path):
    groups = group("GRPO", 0.1, 0.2, 0.4), group("GRPO-λ", 0.5, 0.5, 0.6, importance="lambda_trace")
    write_report(make_results(groups, "GRPO", metric="reward", command="trl-credit compare"), tmp_path)
    files = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {f"{name}.{kind}" for name in ("verdict", "end", "cost", "credit") for kind in ("csv", "md", "tex")} <= files
    latex = (tmp_path / "tables" / "verdict.tex").read_text("utf-8")
    assert latex.startswith("\\begin{tabular}{lrrrrrrrrr}\n\\toprule\n") and latex.isascii()
    assert r"95 \% interval" in latex and r"GRPO-$\lambda$ & above & +0.300 & [" in latex and "\\bottomrule" in latex
    table = pd.read_csv(tmp_path / "tables" / "verdict.csv")
    (row,) = json.loads((tmp_path / "results.json").read_text())["runs"][:1]
    assert table.difference[0] == pytest.approx(0.3) and table.low[0] < 0.3 < table.high[0] and row["label"] == "GRPO"
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    assert curves.columns[:4].tolist() == ["label", "seed", "metric", "value"] and len(curves) == 12
    one = curves[(curves.label == "GRPO") & (curves.seed == 2)]
    np.testing.assert_allclose(one.value, [0.4, 0.5])
    assert one.steps.tolist() == [1, 2] and one.prompts.tolist() == [2, 4]
    assert (tmp_path / "figures" / "steps.pdf").read_bytes().startswith(b"%PDF")


def test_equal_scores_are_a_word_on_the_gradient_where_its_norms_agree():
    def notes_of(norm):
        runs = [history([0.1, 0.2], seed=seed, log={"grad_norm": 0.5}) for seed in (0, 1)]
        other = [history([0.1, 0.2], seed=seed, log={"grad_norm": norm}, importance="x") for seed in (0, 1)]
        groups = make_group("GRPO", runs), make_group("mine", other)
        return " ".join(notes(make_results(groups, "GRPO", metric="reward", command="trl-credit compare")))

    assert "mine: every score equals GRPO's with the same seed, so the gradient is probably the same" in notes_of(0.5)
    assert "but the gradients' norms differ. The runs are too short to tell." in notes_of(0.6)


def test_texts_of_users_stay_texts_in_every_format(tmp_path):
    names = ["=1+2|<b>", r"\input{x} $a_b^c$ & 100% #1", "-x", "−0.5", "@sum", "a\nb"]
    write_tables({"t": Table(["algorithm", "mean", "mean"], [[name, "1", "–"] for name in names])}, tmp_path)
    csv = pd.read_csv(tmp_path / "tables" / "t.csv", dtype=str)
    assert csv.algorithm.tolist() == ["'=1+2|<b>", names[1], "'-x", "-0.5", "'@sum", "a b"]
    assert csv.columns.tolist() == ["algorithm", "mean", "mean_2"] and csv.mean_2.isna().all()
    latex = (tmp_path / "tables" / "t.tex").read_text("utf-8")
    assert r"\textbackslash input\{x\} \$a\_b\textasciicircum c\$ \& 100\% \#1" in latex
    assert r"=1+2\textbar{}\textless{}b\textgreater{}" in latex
    assert latex.count(r" \\" + "\n") == len(names) + 1
    assert r"=1+2\|\<b\>" in (tmp_path / "tables" / "t.md").read_text("utf-8")


def test_a_table_is_no_wider_than_the_terminal(monkeypatch):
    rows = [["S-trace | with a | sign", *["0.123 [0.001, 0.2]"] * 6], ["GRPO", *["–"] * 6]]
    table = markdown_table(["algorithm", *[f"a long name {i}" for i in range(6)]], rows, right=True)
    text = f"Above.\n\n{table}\nBelow."
    assert for_terminal(text) == text  # in a pipe
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = for_terminal(text)
    assert max(map(len, wrapped.splitlines())) <= 80 < max(map(len, text.splitlines()))
    assert wrapped.startswith("Above.\n") and wrapped.rstrip().endswith("Below.")
    squeezed = "".join(wrapped.split())
    assert squeezed.count("0.2]") == 6 and squeezed.count("|0|1|2|3|4|5|") == 0 and "|name0|" in squeezed
    monkeypatch.setenv("COLUMNS", "50")
    assert "\n  a long name 5: –\n" in for_terminal(text) and "algorithm: GRPO\n" in for_terminal(text)
    monkeypatch.setenv("COLUMNS", "400")
    assert for_terminal(text) == text


def test_long_names_leave_room_for_the_axes():
    label = "a very long name of a credit function " * 3
    rows = [ScoreRow(label, 0.1, 0.2, 0.1, 0.0, 0.2, 0.1, None, 0.1, 3, True)]
    figure = draw_differences(rows, score="mean reward", baseline="GRPO", same=[])
    figure.canvas.draw()
    (panel,) = figure.axes
    assert panel.get_position().width > 0.4
