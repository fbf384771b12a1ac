"""The files of a comparison for other programs: tables as LaTeX, CSV and Markdown, curves, and tables in a terminal."""

import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
from comparison_helpers import history

from trl_credit.lab.comparison.answer import notes
from trl_credit.lab.comparison.export import Table, write_tables
from trl_credit.lab.comparison.figures import draw_differences
from trl_credit.lab.comparison.groups import make_group
from trl_credit.lab.comparison.report import write_report
from trl_credit.lab.comparison.results import make_results
from trl_credit.lab.comparison.scoring import ScoreRow
from trl_credit.lab.tables import for_terminal, markdown_table


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
    text = (
        f"Above.\n\n{markdown_table(['algorithm', *[f'a long name {i}' for i in range(6)]], rows, right=True)}\nBelow."
    )
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
