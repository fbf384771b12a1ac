"""An algorithm is one file: what is derived from it, for the package's algorithms and for one that is made up here."""

import dataclasses
import importlib
import pickle
import re
import sys
from types import SimpleNamespace

import algorithm_lists
import pytest
import trl
import yaml
from custom_functions import FILE, args_of
from pages import texts_of
from scripts import ROOT, load_script

import trl_credit
from trl_credit import ALGORITHMS
from trl_credit.config import settings_of_preset
from trl_credit.hub.describe import EIGHTY_TWENTY, describe_credit, function_comments, papers_of, preset_of
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import changed, recipe_of, to_yaml
from trl_credit.lab.comparison.settings_tables import differing_settings
from trl_credit.observe.log_entries import settings_of
from trl_credit.presets import PAPERS, PRESETS
from trl_credit.settings.arguments import parse_arguments


MADE_UP = '''
"""Half-trace (arXiv 2701.00001): traces from every other token.

What it does.

Use it when: half is enough
Costs: as GRPO
"""

from dataclasses import dataclass

from trl_credit.config.knobs import SHARE, knob, when
from trl_credit.presets import Preset, paper
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
    """Half-trace.

    Args:
        my_rate (`float`, *optional*, defaults to `0.5`):
            A rate of mine.
    """

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


# One that is made up


def test_a_made_up_algorithm_and_its_knob_are_known_everywhere(make_up, here, capsys):
    """Flags, help, YAML, card, recipe, identity, rollout log, the tables of a comparison and the README's."""
    module = make_up("made_up_of_own_knob", credit="my_rate: float = knob(0.5, SHARE)")
    (here / "mine.yaml").write_text("my_rate: 0.25\n")
    script = load_script("examples/train.py")
    flags = ["--algo", "made_up", *QUICK, "--save_steps", "1", "--config", "mine.yaml"]
    script.main(flags)
    folder = here / "runs" / "made_up"
    assert "Half-trace on " in capsys.readouterr().out and (folder / "model.safetensors").is_file()
    card = (folder / "README.md").read_text()
    assert "with Half-trace ([Half of It](https://arxiv.org/abs/2701.00001))" in card
    assert "\nHalf-trace: W = Σ\\_{k≤t} \\| \\*z\\_k\\*, A = group advantage, M = all tokens\n" in card
    assert "| my\\_rate | 0.25 | 0.5 |" in card and "| importance | eligible |  |" in card and "- half-trace" in card
    cited = re.findall(r"eprint = \{arXiv:(.*)\}", card)
    assert cited == ["2701.00001", "2605.05965", "2402.03300"]  # its own, then that of the traces it is made of
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert (recipe["algo"], recipe["my_rate"]) == ("made_up", 0.25) and "importance" not in recipe
    with pytest.raises(SystemExit):
        script.main([*flags, "--my_rate", "0.75", "--max_steps", "3", "--resume_from_checkpoint", "true"])
    assert "my_rate 0.25 → 0.75" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--algo", "made_up", "--help", "all"])
    text = " ".join(capsys.readouterr().out.split())
    assert "made_up" in text and "A rate of mine." in text
    args = args_of(module.MadeUpConfig, my_rate=0.25)
    assert settings_of(args)["my_rate"] == 0.25
    groups = [SimpleNamespace(label=x, runs=[SimpleNamespace(settings={"my_rate": x}, credit={})]) for x in (0.1, 0.2)]
    assert differing_settings(groups, of_credit=True) == {0.1: {"my_rate": 0.1}, 0.2: {"my_rate": 0.2}}
    assert differing_settings(groups, of_credit=False) == {0.1: {}, 0.2: {}}
    row = "| [`made_up`](docs/algorithms/made_up.md) | `MadeUpTrainer` | half is enough | as GRPO | not measured | "
    arxiv = "[2701.00001](https://arxiv.org/abs/2701.00001) |"
    assert algorithm_lists.readme_table().splitlines()[-1] == f"{row}{arxiv}"


def test_a_made_up_algorithm_may_have_rules_and_updates(make_up):
    rule = 'RULES = (Rule({}, when(beta=0.0), "it has no reference"),)\n    updates_per_batch = 3'
    config_class = make_up("made_up_of_rules", credit=rule).MadeUpConfig
    with pytest.raises(ValueError, match="^beta=0.1 with MadeUpConfig: it has no reference. Set beta=0.0"):
        args_of(config_class, beta=0.1)
    for settings, steps in (
        ({}, 3),
        ({"gradient_accumulation_steps": 4}, 12),
        ({"gradient_accumulation_steps": 4, "num_iterations": 2}, 4),
        ({"steps_per_generation": 1}, 1),
        ({"generation_batch_size": 16}, 2),
    ):
        args = args_of(config_class, **settings)
        assert args.steps_per_generation == steps and args.generation_batch_size == 8 * steps
        assert dataclasses.replace(args, generation_batch_size=None).steps_per_generation == steps
        changed_steps = settings_of_preset(args).get("steps_per_generation")
        assert changed_steps == ((steps // 3, steps) if steps % 3 == 0 else None)
    theirs = trl.GRPOConfig("unused", use_cpu=True, bf16=False, gradient_accumulation_steps=2)
    assert config_class.from_trl(theirs).steps_per_generation == 6
    assert config_class.from_trl(theirs, steps_per_generation=2).steps_per_generation == 2


@pytest.mark.parametrize("line", ['credit: str = f"{__name__}.credit"', "credit: object = credit"])
def test_a_made_up_algorithm_with_its_own_function(make_up, line):
    module = make_up(f"made_up_function_{len(line)}", credit=line)
    args = args_of(module.MadeUpConfig, beta=0.1)
    assert args.custom_function("credit").__wrapped__ is module.credit
    file = re.escape(f"{module.__name__}.py")
    assert re.fullmatch(rf"credit of {file}, SHA-256 [0-9a-f]{{64}}: “Credit as \| it comes\.”", shown(args)["credit"])
    assert preset_of(args) is module.PRESET
    assert [paper["id"] for paper in papers_of(args)] == ["2701.00001", "2605.05965", "2402.03300"]
    assert re.fullmatch(rf"# credit: credit of {file}, SHA-256 [0-9a-f]{{64}}\n", function_comments(args))
    assert "credit" not in changed(args)  # which is the default


# Custom functions, on any preset


def test_custom_functions_in_the_recipe(tmp_path):
    path = tmp_path / "secret_folder" / "mine.py"
    path.parent.mkdir()
    path.write_text(FILE.read_text())
    chain = {"rollouts": "chain", "segmentation": "steps", "step_splitter": f"{path}:one_step"}
    args = args_of(ALGORITHMS["s_trace"][0], selector=f"{path}:same_selector", **chain)

    def recipe():
        return function_comments(args) + to_yaml(recipe_of(args, (), Public()))

    text = recipe()
    named = r"one_step of mine\.py, SHA-256 [0-9a-f]{64}: “The <b>whole</b> text.”"
    assert re.fullmatch(named, shown(args)["step_splitter"])
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [re.sub("[0-9a-f]{64}", "…", line) for line in comments] == [
        "# selector: same_selector of mine.py, SHA-256 …",
        "# step_splitter: one_step of mine.py, SHA-256 …",
    ]
    assert yaml.safe_load(text)["selector"] == "mine.py:same_selector" and "secret_folder" not in text
    path.unlink()
    assert recipe() == text  # of the functions that were loaded


def test_a_file_name_cannot_leave_its_comment(tmp_path):
    path = tmp_path / "a\nmax_steps: 9\x07.py"
    path.write_text(FILE.read_text())
    text = function_comments(args_of(ALGORITHMS["s_trace"][0], selector=f"{path}:same_selector"))
    assert text.startswith("# selector: same_selector of a?max_steps: 9?.py, SHA-256 ") and text.count("\n") == 1
    assert yaml.safe_load(text) is None


# The package's algorithms


@pytest.mark.parametrize("algo", PRESETS)
def test_every_algorithm_says_what_it_is(algo):
    preset = PRESETS[algo]
    config_class, trainer = ALGORITHMS[algo]
    stem = config_class.__name__.removesuffix("Config")
    assert (preset.config, trainer.__name__, trainer.preset) == (config_class, f"{stem}Trainer", preset)
    assert getattr(trl_credit, f"{stem}Config") is config_class and getattr(trl_credit, f"{stem}Trainer") is trainer
    assert pickle.loads(pickle.dumps(trainer)) is trainer and trainer.__doc__.startswith(f"{preset.name}: ")
    assert (trainer._name, trainer._paper) == (preset.name, preset.paper) and preset.tag in trainer._tag_names
    for text in (preset.summary, *texts_of(preset)):
        assert text and "|" not in text and "\n" not in text
    assert re.fullmatch(r"W = .+, A = .+, M = .+", preset.formula)
    assert preset.paper["title"] and preset.paper["id"] in preset.paper["citation"]
    args = args_of(config_class)
    assert preset.uses is None or preset.uses(args)
    assert preset_of(args) is preset and papers_of(args)[0] == preset.paper
    rows = describe_credit(args)
    assert len({row.part for row in rows}) == 5 and not any(row.published for row in rows)


def test_every_paper_is_that_of_an_algorithm_or_of_a_mask():
    cited = {preset.paper["id"] for preset in PRESETS.values()} | {EIGHTY_TWENTY["id"]}
    assert PAPERS.keys() <= cited and all(paper["title"] and paper["citation"] for paper in PAPERS.values())


def test_every_file_is_registered():
    files = {path.stem for path in (ROOT / "trl_credit" / "presets").glob("*.py")} - {"__init__", "preset"}
    assert files == set(PRESETS) == set(ALGORITHMS) and len({preset.name for preset in PRESETS.values()}) == len(files)


def test_the_costs_of_rollouts_are_those_that_the_pages_measured():
    measured = (ROOT / "benchmarks" / "results" / "forks_tables.md").read_text(encoding="utf-8")
    rounded = {str(round(float(factor))) for factor in re.findall(r"\| ([\d.]+)× \|", measured)}
    for algo, planned in algorithm_lists.OF_ROLLOUTS.items():
        figures = re.findall(r"\d[\d.]*", texts_of(PRESETS[algo]).cost)
        assert planned[0] in figures and set(figures) <= {*planned, *rounded}
