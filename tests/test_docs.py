"""The examples of the page on own algorithms are short, keep the contract and train; pages name what there is."""

import re
from html import escape

import pytest
import torch
from chromium import Chromium, find_chromium
from scripts import ROOT, load_script

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.testing import check_credit


TEXT = (ROOT / "docs" / "your_own_algorithm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
NAMED = r"^(?:def|class) (\w+)"
FUNCTIONS = [block for block in BLOCKS if re.search(NAMED, block, re.MULTILINE) and "trainer = " not in block]

script = load_script("examples/train.py")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """All examples in a file `mine.py` of the current folder, as the page says it."""
    (tmp_path / "mine.py").write_text("\n\n".join(FUNCTIONS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine.py"


def test_there_are_eight_complete_examples_of_at_most_thirty_lines():
    names = [re.search(NAMED, block, re.MULTILINE)[1] for block in FUNCTIONS]
    objects = ["LessWhereSurprised", "Fading"]
    assert names == ["grpo", *objects, "unsure_more", "NoObjection", "turn_trace", "every_fifth", "sentences"]
    assert all(len(block.splitlines()) <= 30 for block in FUNCTIONS)


def test_they_keep_the_contract(mine, tmp_path):
    scope: dict = {}
    for block in FUNCTIONS:
        exec(block, scope)
    (check,) = [block for block in BLOCKS if "check_credit(" in block]
    exec(check, scope)
    check_credit(scope["grpo"], is_grpo_when={})
    for selector in ("entropy", scope["every_fifth"]):
        config = CreditConfig(str(tmp_path), report_to="none", importance="eligible", selector=selector)
        check_credit(scope["unsure_more"], config=config)
    config = CreditConfig(output_dir=str(tmp_path), report_to="none", num_iterations=2)
    assert "batch statistics" in check_credit(scope["LessWhereSurprised"](), config=config)
    for name in ("Fading", "NoObjection"):
        check_credit(scope[name]())


@pytest.mark.slow
def test_the_value_head_learns_at_its_own_rate(tmp_path, monkeypatch):
    (block,) = [block for block in BLOCKS if "value_head" in block]
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(block.replace("**DEMO_SETTINGS", "**{**DEMO_SETTINGS, 'max_steps': 2}"), scope)
    layers = [scope["model"].lm_head.weight, scope["critic"].head.weight]
    before = [layer.detach().clone() for layer in layers]
    scope["trainer"].train()
    slow, quick = ((new - old).abs().max() for new, old in zip(layers, before, strict=True))
    assert 0 < 20 * slow < quick


def test_a_trace_within_turns_is_the_p_trace_where_there_is_one(mine, make_trainer, tmp_path):
    weights = []
    for folder, knobs in (("p", {"importance": "eligible"}), ("turns", {"credit": f"{mine}:turn_trace"})):
        trainer = make_trainer(output_dir=str(tmp_path / folder), loss_type="grpo", **knobs)
        trainer.train()
        weights.append(dict(trainer.model.named_parameters()))
    for name, p in weights[0].items():
        torch.testing.assert_close(p, weights[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        ["--algo", "grpo", "--credit", "mine.py:turn_trace", "--trace_lambda", "0.95"],
        ["--algo", "s_trace", "--credit", "mine.py:unsure_more"],
        ["--algo", "s_trace", "--selector", "mine.py:every_fifth"],
        ["--algo", "s_trace", "--credit", "mine.py:LessWhereSurprised", "--strength", "0.7", "--num_iterations", "2"],
        ["--algo", "grpo", "--credit", "mine.py:Fading"],
        "--algo grpo --credit mine.py:NoObjection --teacher policy --teacher_prompt {prompt}{answer}:".split(),
        ["--algo", "spo_chain", "--segmentation", "mine.py:sentences", "--rollouts_per_state", "2"],
    ],
    ids=lambda flags: flags[3],
)
@pytest.mark.slow
def test_they_train_from_the_command_line_and_stand_on_the_card(mine, tmp_path, flags, capsys):
    small = ["--per_device_train_batch_size", "16", "--max_steps", "2", "--logging_steps", "1"]
    script.main([*flags, *small, "--output_dir", str(tmp_path / "run")])
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    name = flags[3].partition(":")[2]
    assert name in card.replace("\\_", "_") and "mine.py" in card
    assert f"{flags[2][2:]}: {flags[3]}" in (tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")
    assert re.search(r"reward +0\.\d+ → 0\.\d+", capsys.readouterr().out)


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
README = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_readmes_notebook_trains_and_shows_its_credit(tmp_path, monkeypatch):
    trained, shown = README[0].split("trainer.train()")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(trained.replace("**DEMO_SETTINGS", "**{**DEMO_SETTINGS, 'max_steps': 1}"), scope)
    scope["trainer"].train()
    lines = [line for line in shown.splitlines() if not line.strip().startswith("#")]
    assert lines[-1] == "show_credit(trainer)" and eval(lines[-1], scope).html.lower().startswith("<!doctype html>")


def test_the_readmes_example_keeps_the_contract_and_trains(make_trainer, tmp_path, monkeypatch):
    (block,) = [block for block in README if "\ndef " in block]
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(block, scope)
    check_credit(scope["first_half"], config=ALGORITHMS["s_trace"][0](output_dir="unused", report_to="none"))
    trainer = make_trainer("s_trace", credit=scope["first_half"], max_steps=1)
    trainer.train()
    row = trainer.state.log_history[0]
    first, last = (row[f"credit/abs_advantage/quarter_{q}"] for q in (1, 4))
    assert 1.5 < first / last < 2.5


def test_the_example_of_own_metrics_is_logged(trained):
    section = (
        (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").partition("## Metrics of a custom algorithm")[2]
    )
    scope: dict = {"__name__": "mine"}
    exec(re.search(r"```python\n(.+?)```", section, re.DOTALL)[1], scope)
    (row,) = [row for row in trained(credit=scope["Surprise"], max_steps=1).state.log_history if "reward" in row]
    assert row["credit/surprise"] > 0 and row["credit/length"] == row["credit/trained_tokens_per_row"]


@pytest.mark.parametrize(("algo", "knobs"), [("s_trace", ()), ("ha_dw", (("reward_range", (0, 8)),)), ("clip_cov", ())])
def test_metrics_of_a_run_are_on_the_page(finished_run, algo, knobs):
    lint = load_script("docs/lint.py")
    history = finished_run(algo, **dict(knobs)).trainer.state.log_history
    logged = {name for row in history for name in row if not re.fullmatch(r"rewards/.*|train_.*|total_flos", name)}
    assert "credit/abs_advantage" in logged and logged <= set(lint.metrics_of_the_page())


@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")
def test_katex_sets_every_formula_of_the_pages(tmp_path):
    katex, formulas = (ROOT / "docs" / "site" / "katex").as_uri(), {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        shown = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", text)
        formulas |= dict.fromkeys([*shown, *inline], page.name)
    html = [rf'<p class="arithmatex">\({escape(formula)}\)</p>' for formula in formulas]
    scripts = [f'<script src="{katex}/{name}.js"></script>' for name in ("katex.min", "formulas")]
    (tmp_path / "page.html").write_text("\n".join(['<!doctype html><meta charset="utf-8">', *scripts, *html]), "utf-8")
    with Chromium() as browser:
        browser.open(tmp_path / "page.html")
        count = "document.querySelectorAll('{}').length"
        assert browser.evaluate(count.format(".katex")) == len(formulas) > 200
        bad = "'.katex-error, [style*=\"204, 0, 0\"], [style*=cc0000]'"  # KaTeX shows unknown commands in this colour
        wrong = browser.evaluate(f"[...document.querySelectorAll({bad})].map(e => e.textContent)")
    assert wrong == [], {formulas.get(formula) for formula in wrong}


def test_the_linter_finds_names_that_are_not_there():
    lint = load_script("docs/lint.py")
    for name in ("credit/groups/signals", "learning_rates", 'groups="refil"', "trl-credit vew", "sampling/logps"):
        assert not lint.is_known(name), name
    assert lint.is_known("credit/groups/signal") and lint.is_known('groups="refill"')


@pytest.mark.parametrize(("flags", "paper"), [([], "2306.13649"), (["--gold"], "2604.03128")], ids=["model", "gold"])
def test_the_example_of_teachers_trains_and_shows_what_its_teacher_says(here, capsys, flags, paper):
    example = load_script("examples/teacher.py")
    example.main([*flags, "--max_steps", "2", "--output_dir", "run"])
    shown = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("credit/teacher/"))
    assert float(shown["credit/teacher/no_context"]) == 0.0
    assert abs(float(shown["credit/teacher/kl"])) > 0.0
    assert (here / "run" / "model.safetensors").is_file() and paper in (here / "run" / "README.md").read_text("utf-8")
