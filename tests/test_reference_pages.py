"""The README is short; the pages of knobs and metrics name all that there is, and nothing else."""

import inspect
import re
from pathlib import Path

import knobs_page
import metrics_page
import pytest
import trl
from pages import filled
from scripts import ROOT

import trl_credit
from trl_credit.loss.metrics import METRICS


DOCS = ROOT / "docs"


def test_the_knobs_of_the_page_are_those_that_are_declared():
    """If this fails, run `python benchmarks/knobs_page.py`."""
    page, tables = knobs_page.PAGE.read_text(encoding="utf-8"), knobs_page.tables()
    assert all(f"<!-- table: {name} -->" in page for name in tables)
    assert filled(page, tables) == page


def test_the_readme_is_short_and_has_no_line_of_internals():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 120 and readme.startswith("# trl_credit\n")
    assert (DOCS / "index.md").read_text(encoding="utf-8").count("\n") <= 50


def metrics_of_the_page() -> list[str]:
    """The names in the first column of the metrics' tables; `quarter_1…4` stands for four."""
    found = []
    for line in (DOCS / "metrics.md").read_text(encoding="utf-8").partition("## What is averaged")[2].splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                stem, first, last = re.fullmatch(r"(.*?)(?:(\d)…(\d))?", name).groups()
                found += [f"{stem}{i}" for i in range(int(first), int(last) + 1)] if first else [stem]
    return found


def test_the_metrics_of_a_loss_are_those_that_are_registered():
    """If this fails, run `python benchmarks/metrics_page.py`."""
    page, tables = metrics_page.PAGE.read_text(encoding="utf-8"), metrics_page.tables()
    assert all(f"<!-- table: {name} -->" in page for name in tables)
    assert filled(page, tables) == page
    registered = {f"credit/{name}" for names, _, _ in METRICS for name in names}
    assert registered <= set(metrics_of_the_page())


def test_a_docstring_without_the_form_of_a_row_is_refused():
    with pytest.raises(ValueError, match="^filled: its docstring must have a meaning, 'Unit:' and 'If it looks odd:'$"):
        metrics_page.row(["x"], filled)


def test_the_example_of_own_metrics_is_logged(trained):
    section = (DOCS / "metrics.md").read_text(encoding="utf-8").partition("## Metrics of a custom algorithm")[2]
    scope: dict = {"__name__": "mine"}
    exec(re.search(r"```python\n(.+?)```", section, re.DOTALL)[1], scope)
    (row,) = [row for row in trained(credit=scope["Surprise"], max_steps=1).state.log_history if "reward" in row]
    assert row["credit/surprise"] > 0 and row["credit/length"] == row["credit/trained_tokens_per_row"]


def test_metrics_of_the_page_exist():
    """Names in the code may be patterns: `segment_value/level_{depth}`."""
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "trl_credit").rglob("*.py"))
    code += Path(inspect.getsourcefile(trl.GRPOTrainer)).read_text(encoding="utf-8")
    strings = [re.escape(text) for text in re.findall(r'"([a-z_]+[a-z_/{}\d]*)"', code)]
    patterns = [re.compile(re.sub(r"\\\{[a-z_]+\\\}", r"[a-z_\\d]+", text)) for text in strings]
    for name in metrics_of_the_page():
        short = name.removeprefix("credit/").removeprefix("completions/")
        known = name in "loss grad_norm learning_rate epoch step".split()
        assert known or any(p.fullmatch(x) for p in patterns for x in (name, short)), name


@pytest.mark.parametrize(("algo", "knobs"), [("s_trace", {}), ("ha_dw", {"reward_range": [0, 8]}), ("clip_cov", {})])
def test_metrics_of_a_run_are_on_the_page(make_trainer, algo, knobs):
    trainer = make_trainer(algo, max_steps=2, logging_steps=1, **knobs)
    trainer.train()
    logged = {name for row in trainer.state.log_history for name in row} - {"total_flos"}
    assert "credit/abs_advantage" in logged
    known = re.compile(r"rewards/.*|train_.*")
    missing = {name for name in logged if not known.fullmatch(name)} - set(metrics_of_the_page())
    assert not missing


COMPOSE = (DOCS / "compose.md").read_text(encoding="utf-8")


def test_the_combinations_of_the_page_are_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {name: getattr(trl_credit, name) for name in trl_credit.__all__}
    scope["unsure_more"] = lambda config, tokens: trl_credit.assign_credit(config, tokens)
    examples = COMPOSE.partition("## Examples")[2].partition("## What is refused")[0]
    configurations = re.findall(r"`(\w+Config\([^`]*\))`", examples)
    assert len(configurations) >= 9
    for text in configurations:
        eval(text, scope)


def test_the_messages_of_the_page_are_those_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"```python\n([^`]+)\n```\n\n```\n([^`]+)\n```", COMPOSE)
    assert len(found) == 2
    for code, message in found:
        with pytest.raises(ValueError, match=f"^{re.escape(' '.join(message.split()))}$"):
            eval(code, {name: getattr(trl_credit, name) for name in trl_credit.__all__})


def test_the_list_of_benchmarks_is_whole():
    folder = ROOT / "benchmarks"
    listed = set(re.findall(r"`([\w.]+)/?`", (folder / "README.md").read_text(encoding="utf-8").partition("|---")[2]))
    there = {path.name for path in folder.iterdir()} - {"README.md", "results", "__pycache__"}
    assert there <= listed
