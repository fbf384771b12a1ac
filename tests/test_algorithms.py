"""An algorithm is one file: what is derived from it, for those of the package and for one that is made up here."""

import functools
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

import trl_credit
from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.algorithms.__main__ import main
from trl_credit.algorithms.table import PACKAGE, derived, readme_table
from trl_credit.cli import parse_arguments
from trl_credit.demo import DEMO_SETTINGS
from trl_credit.hub.card import escape
from trl_credit.hub.describe import describe_credit
from trl_credit.hub.papers import papers_of
from trl_credit.hub.recipe import changed, function_comments, to_yaml


ROOT = Path(__file__).resolve().parents[1]
MADE_UP = '''
"""Half-trace (arXiv 2701.00001): traces from every other token."""

from dataclasses import dataclass

from trl_credit.algorithms.papers import paper
from trl_credit.assignment import assign_credit
from trl_credit.config import CreditConfig
from trl_credit.trainer import CreditTrainer


PAPER = paper(key="nobody2027half", title="Half of It", authors="A. Nobody", year=2027, arxiv="2701.00001")


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


class MadeUpTrainer(CreditTrainer):
    _tag_names = ["trl", "grpo", "trl-credit", "half-trace"]
    _name = "Half-trace"
    _paper = PAPER
    summary = "traces from 50% of the tokens"
    formula = "W = Σ_{k≤t} | *z_k*, A = group advantage, M = all tokens"
    config_class = MadeUpConfig
'''


STEPS = {"rollouts": "chain", "segmentation": "steps"}


def args_of(config_class, folder="unused", **knobs):
    return config_class(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **knobs)


@pytest.fixture
def make_up(tmp_path, monkeypatch):
    """Writes the file above and puts its algorithm into the dict, which is all that its author does."""

    def make(name: str, credit: str):
        (tmp_path / f"{name}.py").write_text(MADE_UP.replace("CREDIT", credit))
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module(name)
        monkeypatch.setitem(ALGORITHMS, "made_up", (module.MadeUpConfig, module.MadeUpTrainer))
        return module

    yield make
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("train_script_of_algorithms", ROOT / "examples" / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# One that is made up


def test_a_made_up_algorithm_trains_and_has_its_card(make_up, script, tmp_path, monkeypatch, capsys):
    make_up("made_up_of_knobs", credit="")
    monkeypatch.chdir(tmp_path)
    quick = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1".split()
    script.main(["--algo", "made_up", *quick, "--trace_lambda", "0.25"])
    folder = tmp_path / "runs" / "made_up"
    assert "Half-trace on " in capsys.readouterr().out and (folder / "model.safetensors").is_file()
    card = (folder / "README.md").read_text()
    assert "with Half-trace ([Half of It](https://arxiv.org/abs/2701.00001))" in card
    assert (
        "| formula | W = Σ\\_{k≤t} \\| \\*z\\_k\\*, A = group advantage, M = all tokens; with trace\\_lambda=0.25 |"
        in card
    )
    assert "eligibility traces from every token (decay 0.25 per token)" in card and "- half-trace" in card
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
    quick = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1".split()
    script.main(["--algo", "made_up", *quick])
    assert len(seen) == 2 and type(seen[0]) is module.MadeUpConfig
    assert "made\\_up\\_of\\_function.py (SHA-256" in (tmp_path / "runs" / "made_up" / "README.md").read_text()


def test_a_made_up_algorithm_is_found_by_name(make_up, tmp_path):
    module = make_up("made_up_by_name", credit="")
    assert trl_credit.MadeUpConfig is trl_credit.algorithms.MadeUpConfig is module.MadeUpConfig
    assert trl_credit.MadeUpTrainer is module.MadeUpTrainer
    from trl_credit import MadeUpTrainer

    assert MadeUpTrainer.uses(args_of(module.MadeUpConfig)) and not MadeUpTrainer.uses(args_of(CreditConfig))
    row = "| `made_up` | `MadeUpTrainer` | traces from 50% of the tokens | [2701.00001](https://arxiv.org/abs/"
    assert readme_table().splitlines()[-1] == f"{row}2701.00001) |"
    script, _, args, _, _ = parse_arguments(["--algo", "made_up", "--output_dir", str(tmp_path)])
    assert script.algo == "made_up" and type(args) is module.MadeUpConfig


def help_of_algo(capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out.partition("--algo ")[2].partition("\n  --")[0]
    return " ".join(text.split())


def test_help_names_what_every_algorithm_does(make_up, capsys, monkeypatch):
    before = help_of_algo(capsys)
    for name, (_, trainer_class) in ALGORITHMS.items():
        assert f"{name} ({trainer_class.summary})" in before
    assert "made_up" not in before
    make_up("made_up_for_help", credit="")
    assert "made_up (traces from 50% of the tokens)" in help_of_algo(capsys)
    monkeypatch.delitem(ALGORITHMS, "made_up")
    assert "made_up" not in help_of_algo(capsys)


@pytest.mark.parametrize("given", ['credit: str = f"{__name__}.credit"', "credit: object = credit"])
def test_a_made_up_algorithm_with_its_own_function(make_up, given):
    module = make_up(f"made_up_function_{len(given)}", credit=given)
    args = args_of(module.MadeUpConfig, beta=0.1)
    assert args.own_function("credit") is module.credit
    rows = describe_credit(args)
    file = re.escape(f"{module.__name__}.py")
    source = rf"`credit` of {file} \(SHA-256 [0-9a-f]{{12}}\)"
    assert re.fullmatch(rf"{source}: “Credit as \| it comes\.”", rows["weight W"])
    assert re.fullmatch(rf"{source}, from the reward minus the mean of its group.*", rows["advantage A"])
    assert rows["mask M"].startswith("all tokens of the response; `credit` may")
    assert rows["formula"] == module.MadeUpTrainer.formula  # beta is no knob of credit
    assert [paper["id"] for paper in papers_of(args)] == ["2701.00001", "2605.05965", "2402.03300"]
    assert re.fullmatch(rf"# credit: credit of {file}, SHA-256 [0-9a-f]{{64}}\n", function_comments(args))
    assert "credit" not in changed(args)  # which is the default


def test_an_inherited_rule_is_not_its_own(monkeypatch):
    """A trainer on top of S-trace, with a paper of its own and no word on who uses it."""
    config_class, trainer_class = ALGORITHMS["s_trace"]
    child = type("ChildTrainer", (trainer_class,), {"_paper": {"id": "1", "citation": "c", "title": "t"}})
    child.config_class = type("ChildConfig", (config_class,), {})
    monkeypatch.setitem(ALGORITHMS, "child", (child.config_class, child))
    assert [paper["id"] for paper in papers_of(args_of(config_class))] == ["2605.05965", "2402.03300"]
    assert [paper["id"] for paper in papers_of(args_of(child.config_class))] == ["1", "2605.05965", "2402.03300"]


# Functions of one's own, on any preset


OWN = '''
def half(entropy_t, *, rate, mask_t):
    """Every other <b>token</b>."""
    return mask_t


def steps(text):
    return [0, len(text)]


def baseline(rewards, *, lengths, num_generations):
    return rewards


def kept(old_logp_t, *, threshold, mask_t):
    return mask_t
'''


@pytest.fixture
def own(tmp_path):
    """`file.py:` of a file of functions in a folder."""
    folder = tmp_path / "secret_folder"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN)
    return f"{folder / 'mine.py'}:"


def test_functions_of_ones_own_have_words(own):
    s_trace, grpo, vine = (ALGORITHMS[name][0] for name in ("s_trace", "grpo", "vine_ppo"))
    rows = describe_credit(args_of(s_trace, selector=f"{own}half", token_mask=f"{own}kept"))
    source = r"of mine\.py \(SHA-256 [0-9a-f]{12}\)"
    doc = ": “Every other <b>token</b>.”"
    assert re.search(rf"eligibility traces from `half` {source}{doc} \(decay 0.9", rows["weight W"])
    assert re.fullmatch(rf"`kept` {source}", rows["mask M"])
    assert "; with selector='mine.py:half', token_mask='mine.py:kept'" in rows["formula"]
    assert "&lt;b&gt;" in escape(rows["weight W"])
    assert re.fullmatch(
        rf"`baseline` {source}", describe_credit(args_of(grpo, baseline=f"{own}baseline"))["advantage A"]
    )
    rows = describe_credit(args_of(vine, step_splitter=f"{own}steps"))
    assert re.search(rf"; segments by `steps` {source}$", rows["advantage A"])
    rows = describe_credit(args_of(vine, segmentation=f"{own}steps"))
    assert re.search(rf"; segments by `steps` {source}$", rows["advantage A"])
    rows = describe_credit(args_of(grpo, baseline=lambda rewards, *, lengths, num_generations: rewards))
    assert rows["advantage A"].startswith("`<lambda>` of test_algorithms.py (SHA-256 ")


def test_functions_of_ones_own_in_the_recipe(own, tmp_path):
    args = args_of(ALGORITHMS["s_trace"][0], selector=f"{own}half", **STEPS, step_splitter=f"{own}steps")
    text = function_comments(args) + to_yaml(changed(args))
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [re.sub("[0-9a-f]{64}", "…", line) for line in comments] == [
        "# selector: half of mine.py, SHA-256 …",
        "# step_splitter: steps of mine.py, SHA-256 …",
    ]
    assert yaml.safe_load(text)["selector"] == "mine.py:half" and "secret_folder" not in text
    Path(own[:-1]).unlink()
    assert function_comments(args) + to_yaml(changed(args)) == text  # it says what was loaded
    args.selector = f"{own}steps_not_loaded"
    assert "# selector: steps_not_loaded, whose file is gone\n" in function_comments(args)
    assert "traces from `steps_not_loaded`, whose file is gone (decay" in describe_credit(args)["weight W"]


def test_a_file_name_cannot_leave_its_comment(tmp_path):
    path = tmp_path / "a\nmax_steps: 9\x07.py"
    path.write_text(OWN)
    args = args_of(ALGORITHMS["s_trace"][0], selector=f"{path}:half")
    text = function_comments(args)
    assert text.startswith("# selector: half of a?max_steps: 9?.py, SHA-256 ") and text.count("\n") == 1
    assert yaml.safe_load(text) is None


@pytest.mark.parametrize("knob", ["importance", "selector", "baseline", "token_mask", "rollouts", "difficulty"])
def test_a_value_without_a_phrase_is_shown(knob):
    args = args_of(ALGORITHMS["s_trace"][0])
    setattr(args, knob, "new")
    rows = describe_credit(args)
    assert any(f"{knob}='new'" in rows[row] or "(new)" in rows[row] for row in ("weight W", "advantage A", "mask M"))
    assert f"; with {knob}='new'" in rows["formula"] and papers_of(args)[-1]["id"] == "2402.03300"


def test_knobs_that_differ_from_the_preset_are_named():
    s_trace = ALGORITHMS["s_trace"][0]
    rows = describe_credit(args_of(s_trace, importance="token", selector="none", top_entropy_quantile=0.2))
    assert rows["formula"].endswith("; with top_entropy_quantile=0.2, importance='token', selector='none'")
    # neither what is not about credit nor the segments' knobs, where there are no segments
    assert describe_credit(args_of(s_trace, **DEMO_SETTINGS, beta=0.2, nonfinite_patience=1))["formula"].endswith(
        "M = all tokens"
    )
    tree = ALGORITHMS["spo_tree"][0]
    assert describe_credit(args_of(tree, tree_branching=[2, 2]))["formula"].endswith("; with tree_branching=[2, 2]")
    assert "formula" not in describe_credit(args_of(CreditConfig))  # which is no preset


# Those of the package


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_says_what_it_is(algo):
    config_class, trainer_class = ALGORITHMS[algo]
    assert trainer_class.summary and "|" not in trainer_class.summary and "\n" not in trainer_class.summary
    assert re.fullmatch(r"W = .+, A = .+, M = .+", trainer_class.formula)
    for name in ("_name", "_tag_names", "_paper", "summary", "formula", "config_class", "uses"):
        assert name in vars(trainer_class), name
    assert trainer_class._paper["title"] and trainer_class._paper["citation"].startswith("@article{")
    assert trainer_class.uses(args_of(config_class))
    rows = describe_credit(args_of(config_class))
    assert list(rows) == ["formula", "weight W", "advantage A", "mask M"] and all(rows.values())
    assert rows["formula"] == trainer_class.formula


def test_the_readme_and_the_names_for_editors_are_derived():
    texts = [(ROOT / "README.md").read_text(), (PACKAGE / "__init__.py").read_text()]
    assert list(derived(*texts)) == texts, "python -m trl_credit.algorithms --write"
    assert readme_table() in texts[0] and readme_table().count("\n") == len(ALGORITHMS) + 1
    shorter = [texts[0].replace(readme_table()[:400], ""), texts[1].replace('    "Tokens",\n', "")]
    assert list(derived(*shorter)) == texts and shorter != texts
    with pytest.raises(ValueError, match="README.md should have one place"):
        derived("", texts[1])


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["algorithms"])
    main()
    assert capsys.readouterr().out.strip() == readme_table()
    (tmp_path / "trl_credit").mkdir()
    monkeypatch.setattr("trl_credit.algorithms.__main__.PACKAGE", tmp_path / "trl_credit")
    monkeypatch.setattr("sys.argv", ["algorithms", "--write"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no README.md in" in capsys.readouterr().err
    (tmp_path / "README.md").write_text("a\n<!-- algorithms -->\nb\n<!-- end of algorithms -->\nc")
    copy = tmp_path / "trl_credit" / "__init__.py"
    copy.write_text((PACKAGE / "__init__.py").read_text())
    main()
    assert (
        capsys.readouterr().out == "written: README.md\n" and copy.read_text() == (PACKAGE / "__init__.py").read_text()
    )
    table = f"a\n<!-- algorithms -->\n{readme_table()}\n<!-- end of algorithms -->\nc"
    assert (tmp_path / "README.md").read_text() == table


def test_nobody_but_the_trainer_reads_its_private_name():
    files = [*(ROOT / "examples").glob("*.py"), *PACKAGE.rglob("*.py")]
    reading = [path.name for path in files if re.search(r"\._name\b", path.read_text())]
    assert reading == ["credit_trainer.py"]
