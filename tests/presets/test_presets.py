"""An algorithm is one file: what is derived from it, for the package's algorithms and for one that is made up here."""

import dataclasses
import functools
import importlib
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
import yaml
from custom_functions import FILE, args_of
from readme_table import readme_table
from scripts import ROOT, load_script

import trl_credit
from trl_credit import ALGORITHMS
from trl_credit.config import settings_of_preset
from trl_credit.config.knobs import knob, one_of
from trl_credit.hub.describe import describe_credit, function_comments, preset_of
from trl_credit.hub.papers import papers_of
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import changed, recipe_of, to_yaml
from trl_credit.lab.comparison.settings_tables import settings_beside_credit, settings_of_credit
from trl_credit.observe.log_entries import settings_of
from trl_credit.presets import PRESETS
from trl_credit.settings.arguments import parse_arguments


PACKAGE = ROOT / "trl_credit"
MADE_UP = '''
"""Half-trace (arXiv 2701.00001): traces from every other token."""

from dataclasses import dataclass

from trl_credit.config.knobs import SHARE, knob
from trl_credit.presets import Preset, paper
from trl_credit.config.knobs import when
from trl_credit.config.rules import Rule
from trl_credit.loss.assignment import assign_credit
from trl_credit.config import CreditConfig
from trl_credit.trainer import CreditTrainer


PAPER = paper(title="Half of It", authors="A. Nobody", arxiv="2701.00001")


def credit(config, tokens):
    """Credit as | it comes.

    Further lines.
    """
    return assign_credit(config, tokens)


@dataclass
class MadeUpConfig(CreditConfig):
    loss_type: str = "grpo"
    importance: str = "eligible"
    trace_lambda: float = 0.5
    use_bias_correction_kl: bool = False
    CREDIT


PRESET = Preset(
    name="Half-trace",
    paper=PAPER,
    summary="traces from 50% of the tokens",
    formula="W = Σ_{k≤t} | *z_k*, A = group advantage, M = all tokens",
    config=MadeUpConfig,
)


class MadeUpTrainer(CreditTrainer):
    preset = PRESET
'''


QUICK = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1".split()


def shown(args) -> dict[str, str]:
    return {row.name: row.value for row in describe_credit(args)}


@pytest.fixture
def make_up(tmp_path, monkeypatch):
    """Writes the file above and registers its preset and its trainer, as its author would."""

    def make(name: str, credit: str):
        (tmp_path / f"{name}.py").write_text(MADE_UP.replace("CREDIT", credit))
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module(name)
        monkeypatch.setitem(PRESETS, "made_up", module.PRESET)
        monkeypatch.setitem(ALGORITHMS, "made_up", (module.MadeUpConfig, module.MadeUpTrainer))
        return module

    yield make
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


@pytest.fixture
def script():
    return load_script("examples/train.py")


# One that is made up


def test_a_made_up_algorithm_trains_and_has_its_card(make_up, script, tmp_path, monkeypatch, capsys):
    make_up("made_up_of_knobs", credit="")
    monkeypatch.chdir(tmp_path)
    script.main(["--algo", "made_up", *QUICK, "--trace_lambda", "0.25"])
    folder = tmp_path / "runs" / "made_up"
    assert "Half-trace on " in capsys.readouterr().out and (folder / "model.safetensors").is_file()
    card = (folder / "README.md").read_text()
    assert "with Half-trace ([Half of It](https://arxiv.org/abs/2701.00001))" in card
    assert "\nHalf-trace: W = Σ\\_{k≤t} \\| \\*z\\_k\\*, A = group advantage, M = all tokens\n" in card
    assert (
        "| trace\\_lambda | 0.25 | 0.5 |" in card and "| importance | eligible |  |" in card and "- half-trace" in card
    )
    cited = re.findall(r"eprint = \{arXiv:(.*)\}", card)
    assert cited == ["2701.00001", "2605.05965", "2402.03300"]  # its own, then that of the traces it is made of
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert (recipe["algo"], recipe["trace_lambda"]) == ("made_up", 0.25) and "importance" not in recipe


def test_the_credit_function_of_a_made_up_algorithm_is_trained_with(make_up, script, tmp_path, monkeypatch):
    module = make_up("made_up_of_function", credit='credit: str = f"{__name__}.credit"')
    function, seen = module.credit, []

    @functools.wraps(function)
    def counted(config, tokens):
        seen.append(config)
        return function(config, tokens)

    monkeypatch.setattr(module, "credit", counted)
    monkeypatch.chdir(tmp_path)
    script.main(["--algo", "made_up", *QUICK])
    assert len(seen) >= 2 and type(seen[0]) is module.MadeUpConfig
    card = (tmp_path / "runs" / "made_up" / "README.md").read_text()
    assert "made\\_up\\_of\\_function.py, SHA-256" in card and "of its own" not in card  # the function is the algorithm


def test_a_made_up_algorithm_is_found_by_name(make_up, tmp_path):
    module = make_up("made_up_by_name", credit="")
    row = "| [`made_up`](docs/algorithms/made_up.md) | `MadeUpTrainer` |  |  | [2701.00001](https://arxiv.org/abs/"
    assert readme_table().splitlines()[-1] == f"{row}2701.00001) |"
    script, _, args, _, _ = parse_arguments(["--algo", "made_up", "--output_dir", str(tmp_path)])
    assert script.algo == "made_up" and type(args) is module.MadeUpConfig


def test_a_knob_of_a_made_up_algorithm_is_known_everywhere(make_up, script, tmp_path, monkeypatch, capsys):
    """Flags, help, YAML, card, recipe, identity, rollout log and the tables of a comparison."""
    module = make_up("made_up_of_own_knob", credit='my_rate: float = knob(0.5, "A rate of mine.", SHARE)')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("my_rate: 0.25\n")
    given = ["--algo", "made_up", *QUICK, "--save_steps", "1", "--config", "mine.yaml"]
    script.main(given)
    folder = tmp_path / "runs" / "made_up"
    assert "| my\\_rate | 0.25 | 0.5 |" in (folder / "README.md").read_text()
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["my_rate"] == 0.25
    capsys.readouterr()
    with pytest.raises(SystemExit):
        script.main([*given, "--my_rate", "0.75", "--max_steps", "3", "--resume_from_checkpoint", "true"])
    assert "my_rate 0.25 → 0.75" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--algo", "made_up", "--help", "all"])
    assert "--my_rate" in (text := capsys.readouterr().out) and "A rate of mine. Must be in [0, 1]." in " ".join(
        text.split()
    )
    args = args_of(module.MadeUpConfig, my_rate=0.25)
    assert settings_of(args)["my_rate"] == 0.25 and settings_of(args_of(module.MadeUpConfig))["my_rate"] == 0.5
    groups = [SimpleNamespace(label=x, runs=[SimpleNamespace(settings={"my_rate": x}, credit={})]) for x in (0.1, 0.2)]
    assert settings_of_credit(groups) == {0.1: {"my_rate": 0.1}, 0.2: {"my_rate": 0.2}}
    assert settings_beside_credit(groups) == {0.1: {}, 0.2: {}}
    with pytest.raises(ValueError, match=r"my_rate must be in \[0, 1\], got 2"):
        args_of(module.MadeUpConfig, my_rate=2.0)


def test_a_knob_of_a_subclass_is_shown_beside_its_own_default(make_up):
    module = make_up("made_up_below_own_knob", credit="")

    @dataclass
    class BelowConfig(module.MadeUpConfig):
        my_count: int = knob(3, "A count of mine.", acts={"loss_type": one_of("grpo")})

    (row,) = [row for row in describe_credit(args_of(BelowConfig, my_count=4)) if row.name == "my_count"]
    assert (row.value, row.published) == ("4", "3")
    with pytest.raises(ValueError, match="my_count=4 does nothing, since loss_type='dapo'"):
        args_of(BelowConfig, my_count=4, loss_type="dapo")
    assert "my_count" not in shown(args_of(BelowConfig, loss_type="dapo"))


def test_a_made_up_algorithm_may_have_rules_and_updates(make_up):
    rule = 'RULES = (Rule({}, when(beta=0.0), "it has no reference"),)\n    updates_per_batch = 3'
    config_class = make_up("made_up_of_rules", credit=rule).MadeUpConfig
    with pytest.raises(
        ValueError, match="^beta=0.1 with MadeUpConfig: it has no reference. Set beta=0.0, or change the algorithm.$"
    ):
        args_of(config_class, beta=0.1)
    for given, steps in (
        ({}, 3),
        ({"gradient_accumulation_steps": 4}, 12),
        ({"num_iterations": 2}, 1),
        ({"gradient_accumulation_steps": 4, "num_iterations": 2}, 4),
        ({"steps_per_generation": 1}, 1),
        ({"generation_batch_size": 16}, 2),
    ):
        args = args_of(config_class, **given)
        assert args.steps_per_generation == steps and args.generation_batch_size == 8 * steps
        assert dataclasses.replace(args, generation_batch_size=None).steps_per_generation == steps
        said = settings_of_preset(args).get("steps_per_generation")
        assert said == ((steps // 3, steps) if steps % 3 == 0 else None)
    theirs = trl.GRPOConfig("unused", use_cpu=True, bf16=False, gradient_accumulation_steps=2)
    assert config_class.from_trl(theirs).steps_per_generation == 6
    assert config_class.from_trl(theirs, steps_per_generation=2).steps_per_generation == 2
    theirs = trl.GRPOConfig("unused", use_cpu=True, bf16=False, steps_per_generation=4)
    assert config_class.from_trl(theirs).steps_per_generation == 4


def help_of_algo(capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["--help", "all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out.partition("--algo ")[2].partition("\n  --")[0]
    return " ".join(text.split())


def test_help_names_what_every_algorithm_does(make_up, capsys, monkeypatch):
    before = help_of_algo(capsys)
    for name, preset in PRESETS.items():
        assert f"{name} ({preset.summary})" in before
    assert "made_up" not in before
    make_up("made_up_for_help", credit="")
    assert "made_up (traces from 50% of the tokens)" in help_of_algo(capsys)
    monkeypatch.delitem(PRESETS, "made_up")
    assert "made_up" not in help_of_algo(capsys)


@pytest.mark.parametrize("given", ['credit: str = f"{__name__}.credit"', "credit: object = credit"])
def test_a_made_up_algorithm_with_its_own_function(make_up, given):
    module = make_up(f"made_up_function_{len(given)}", credit=given)
    args = args_of(module.MadeUpConfig, beta=0.1)
    assert args.custom_function("credit").__wrapped__ is module.credit
    file = re.escape(f"{module.__name__}.py")
    assert re.fullmatch(rf"credit of {file}, SHA-256 [0-9a-f]{{64}}: “Credit as \| it comes\.”", shown(args)["credit"])
    assert preset_of(args) is module.PRESET
    assert [paper["id"] for paper in papers_of(args)] == ["2701.00001", "2605.05965", "2402.03300"]
    assert re.fullmatch(rf"# credit: credit of {file}, SHA-256 [0-9a-f]{{64}}\n", function_comments(args))
    assert "credit" not in changed(args)  # which is the default


def test_a_preset_without_a_rule_is_cited_by_its_own_class_alone(monkeypatch):
    """A preset on top of S-trace, with a paper of its own."""
    s_trace = PRESETS["s_trace"]
    child = replace(
        s_trace,
        paper={"id": "1", "citation": "c", "title": "t"},
        config=type("Child", (s_trace.config,), {}),
        uses=None,
    )
    monkeypatch.setitem(PRESETS, "child", child)
    assert [paper["id"] for paper in papers_of(args_of(s_trace.config))] == ["2605.05965", "2402.03300"]
    assert [paper["id"] for paper in papers_of(args_of(child.config))] == ["1", "2605.05965", "2402.03300"]


# Custom functions, on any preset


CHAIN = {"rollouts": "chain", "segmentation": "steps"}


@pytest.fixture
def custom(tmp_path):
    """`file.py:` of a file of functions in a folder."""
    path = tmp_path / "secret_folder" / "mine.py"
    path.parent.mkdir()
    path.write_text(FILE.read_text())
    return f"{path}:"


@pytest.mark.parametrize(
    ("algo", "setting", "function"),
    [
        ("s_trace", "selector", "same_selector"),
        ("s_trace", "token_mask", "same_mask"),
        ("grpo", "baseline", "same_baseline"),
        ("vine_ppo", "step_splitter", "one_step"),
        ("vine_ppo", "segmentation", "every_third"),
    ],
)
def test_a_custom_function_is_shown_with_its_digest(custom, algo, setting, function):
    doc = {"one_step": ": “The <b>whole</b> text.”", "every_third": ": “.*”"}.get(function, "")
    args = args_of(ALGORITHMS[algo][0], **{setting: f"{custom}{function}"})
    value = shown(args)[setting]
    assert re.fullmatch(rf"{function} of mine\.py, SHA-256 [0-9a-f]{{64}}{doc}", value)


def test_a_function_given_as_an_object_is_shown_with_its_file():
    args = args_of(ALGORITHMS["grpo"][0], baseline=lambda rewards, *, lengths, num_generations: rewards)
    assert shown(args)["baseline"].startswith(f"<lambda> of {Path(__file__).name}, SHA-256 ")


def test_custom_functions_in_the_recipe(custom):
    args = args_of(
        ALGORITHMS["s_trace"][0], selector=f"{custom}same_selector", **CHAIN, step_splitter=f"{custom}one_step"
    )

    def recipe():
        return function_comments(args) + to_yaml(recipe_of(args, (), Public()))

    text = recipe()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [re.sub("[0-9a-f]{64}", "…", line) for line in comments] == [
        "# selector: same_selector of mine.py, SHA-256 …",
        "# step_splitter: one_step of mine.py, SHA-256 …",
    ]
    assert yaml.safe_load(text)["selector"] == "mine.py:same_selector" and "secret_folder" not in text
    Path(custom[:-1]).unlink()
    assert recipe() == text  # of the functions that were loaded
    args.selector = f"{custom}steps_not_loaded"
    assert "# selector: steps_not_loaded, whose file is gone\n" in recipe()
    assert shown(args)["selector"] == "steps_not_loaded, whose file is gone"


def test_a_file_name_cannot_leave_its_comment(tmp_path):
    path = tmp_path / "a\nmax_steps: 9\x07.py"
    path.write_text(FILE.read_text())
    text = function_comments(args_of(ALGORITHMS["s_trace"][0], selector=f"{path}:same_selector"))
    assert text.startswith("# selector: same_selector of a?max_steps: 9?.py, SHA-256 ") and text.count("\n") == 1
    assert yaml.safe_load(text) is None


@pytest.mark.parametrize("knob", ["importance", "selector", "baseline", "token_mask", "rollouts", "difficulty"])
def test_a_new_choice_of_a_knob_is_shown(knob):
    args = args_of(ALGORITHMS["s_trace"][0])
    setattr(args, knob, "new")
    (row,) = [row for row in describe_credit(args) if row.name == knob]
    published = getattr(args_of(ALGORITHMS["s_trace"][0]), knob)
    assert (row.value, row.published) == ("new", published) and papers_of(args)[-1]["id"] == "2402.03300"


# The package's algorithms


@pytest.mark.parametrize("algo", PRESETS)
def test_every_algorithm_says_what_it_is(algo):
    preset = PRESETS[algo]
    assert len(preset.idea) == 3 and all(sentence.endswith(".") for sentence in preset.idea)
    for text in (preset.summary, preset.use_when, preset.cost, *preset.idea):
        assert text and "|" not in text and "\n" not in text
    assert re.fullmatch(r"W = .+, A = .+, M = .+", preset.formula)
    assert preset.paper["title"] and preset.paper["citation"].startswith("@article{")
    args = args_of(preset.config)
    assert preset.uses is None or preset.uses(args)
    assert preset_of(args) is preset and papers_of(args)[0] == ALGORITHMS[algo][1]._paper
    rows = describe_credit(args)
    assert len({row.part for row in rows}) == 5 and not any(row.published for row in rows)


def test_the_costs_of_rollouts_are_those_that_the_pages_measured():
    pages = ("scaling", "results/which")
    scaling, which = ((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    rounded = {str(round(float(factor))) for factor in re.findall(r"\| ([\d.]+)× \|", which)}
    for algo, preset in PRESETS.items():
        if preset.config.rollouts != "none":
            planned = re.search(rf"^\| `{algo}`[^|]*\| ([^|]+) \|.* ([\d.]+) \|$", scaling, re.MULTILINE)
            figures = re.findall(r"\d[\d.]*", preset.cost)
            assert planned[1] in figures and set(figures) <= {*planned.groups(), *rounded}


def test_registry_named_trainers_package_and_readme_agree():
    """A new algorithm is a file and one line in each of three places: this fails if one of them is missing."""
    files = {path.stem for path in (PACKAGE / "presets").glob("*.py")} - {"__init__", "__main__", "preset"}
    assert files == set(PRESETS) == set(ALGORITHMS)
    for name, preset in PRESETS.items():
        stem = preset.config.__name__.removesuffix("Config")
        trainer = getattr(trl_credit, f"{stem}Trainer")
        assert getattr(trl_credit, f"{stem}Config") is preset.config and {f"{stem}Config", f"{stem}Trainer"} < set(
            trl_credit.__all__
        )
        assert trainer.preset is preset and ALGORITHMS[name] == (preset.config, trainer)
        assert (trainer._name, trainer._paper) == (preset.name, preset.paper) and preset.tag in trainer._tag_names
        assert preset.paper["id"] in preset.paper["citation"]
    assert len({preset.name for preset in PRESETS.values()}) == len(PRESETS)
    table = readme_table()
    assert table in (ROOT / "README.md").read_text() and table.count("\n") == len(PRESETS) + 1
