"""Flags over files, files over their bases; and wrong names."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml
from custom_functions import custom
from trl import ModelConfig

from trl_credit import ALGORITHMS
from trl_credit.cli.training import make_data, make_rewards
from trl_credit.config.knobs import knobs_of
from trl_credit.data import DataArguments
from trl_credit.demo import TASKS, demo_dataset, demo_model_path, demo_reward
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import recipe_of
from trl_credit.settings.arguments import ScriptArguments, inactive_settings, parse_arguments, with_source
from trl_credit.settings.early import check_names, field_names
from trl_credit.settings.files import read_settings


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".yaml").write_text(text)


def test_own_keys_win_over_bases_and_later_files_over_earlier_ones(tmp_path):
    write(
        tmp_path,
        root="algo: grpo\nbeta: 0.1\nlearning_rate: 1.0e-6\n",
        other="beta: 0.2\nepsilon: 0.3\n",
        sub__leaf="base: [../root.yaml, ../other.yaml]\nalgo: s_trace\n",
        last="epsilon: 0.4\n",
    )
    files = [str(tmp_path / "sub" / "leaf.yaml"), str(tmp_path / "last.yaml")]
    assert read_settings(files)[0] == {"algo": "s_trace", "beta": 0.2, "learning_rate": 1e-6, "epsilon": 0.4}
    flags = ["--epsilon", "0.25", "--output_dir", str(tmp_path / "out")]
    script, _, args, _, config = parse_arguments(["--config", *files, *flags])
    assert (script.algo, args.beta, args.epsilon, config["epsilon"]) == ("s_trace", 0.2, 0.25, 0.4)


def test_the_embedded_model_is_the_default_and_has_a_name(tmp_path):
    env = "env: {TOKENIZERS_PARALLELISM: 'false'}\n"
    write(tmp_path, a=f"reward: demo\ndecontaminate: math500\nmodel_name_or_path: demo\n{env}")
    script, data, args, model, _ = parse_arguments(["--config", str(tmp_path / "a.yaml"), "--output_dir", "out"])
    assert script.reward == ["demo"] and data.decontaminate == ["math500"]
    assert model.model_name_or_path == demo_model_path() and args.max_steps == 200
    _, _, args, model, _ = parse_arguments(["--model_name_or_path", "some/model", "--output_dir", "out"])
    assert model.model_name_or_path == "some/model" and args.max_steps == -1


@pytest.mark.parametrize("words", ["--dataset_name demo_hum", "--model_name_or_path demo_hum"])
def test_the_task_with_filler_brings_its_model_and_its_settings(words, tmp_path):
    hum = TASKS["demo_hum"]
    choices = parse_arguments([*words.split(), "--algo", "grpo", "--output_dir", str(tmp_path / "out")])
    assert choices.model.model_name_or_path == demo_model_path(hum) != demo_model_path()
    assert choices.data.dataset_name == "demo_hum" and choices.args.max_steps == 200
    assert choices.args.max_completion_length == hum.max_completion_length == 108
    rewards = make_rewards(choices)
    assert rewards == [demo_reward]
    data = make_data(choices, rewards)
    assert data["prompt"][:] == demo_dataset(seed=42, task=hum)["prompt"][:]
    recipe = recipe_of(choices.args, [choices.script, choices.data, choices.model], Public())
    named = {"algo": "grpo", "dataset_name": "demo_hum", "model_name_or_path": "demo_hum"}
    assert {name: value for name, value in recipe.items() if name != "output_dir"} == named
    write(tmp_path, again=yaml.safe_dump({**recipe, "output_dir": str(tmp_path / "out")}))
    assert parse_arguments(["--config", str(tmp_path / "again.yaml")]).args == choices.args


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ('set allow_changed=["learning_rate", "beta"].', "set --allow_changed learning_rate beta."),
        ("resume_from_checkpoint=True", "--resume_from_checkpoint true"),
        ("leave overwrite_output_dir=True out", "leave --overwrite_output_dir true out"),
        ("beta=0.1 with allow_changed='x'", "beta=0.1 with allow_changed='x'"),
    ],
)
def test_what_to_set_is_shown_as_flags(message, shown, tmp_path):
    assert str(with_source(ValueError(message), [])) == shown
    (tmp_path / "own.yaml").write_text("beta: 0.1\n")
    with_file = str(with_source(ValueError(f"beta=0.2: {message}"), ["--config", str(tmp_path / "own.yaml")]))
    assert with_file.startswith(f"beta=0.2: {shown.rstrip('.')} (beta is set in ")


# The settings of an algorithm that is a class


WORDS = ["--algo", "grpo", "--credit", custom("GroupWords"), "--output_dir", "unused"]


def test_the_settings_of_a_class_are_flags_and_lines_of_a_file(tmp_path):
    args = parse_arguments([*WORDS, "--strength", "0.7", "--cap", "2", "--signs", "2", "-2", "--grows", "true"]).args
    assert (args.strength, args.cap, args.signs, args.grows) == (0.7, 2.0, [2, -2], True)
    file = tmp_path / "a.yaml"
    own = "strength: 1\ncap: null\nsigns: [2, -2]\ngrows: true\n"
    file.write_text(f"algo: grpo\ncredit: {custom('GroupWords')}\n{own}")
    args = parse_arguments(["--config", str(file), "--grows", "false", "--strength=0.2"]).args
    assert (args.strength, args.cap, args.signs, args.grows) == (0.2, None, [2, -2], False)
    inactive = inactive_settings(["--config", str(file), "--gamma", "0.9"], lacks={"strength", "cap", "pair"})
    assert inactive == ["cap", "strength"]


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("", ["--strenth", "1"], "unknown flag '--strenth': did you mean '--strength'?"),
        ("strenth: 1", [], "unknown field 'strenth' in {file}: did you mean 'strength'?"),
        ("strength: high", [], "strength in {file}: invalid float value: 'high'"),
        ("strength: -1", [], "strength must be at least 0 and finite, got -1.0 (strength is set in {file})"),
        ("", ["--credit", "gone.py:Words", "--strength", "1"], "credit 'gone.py:Words': there is no file 'gone.py' "),
        ("", ["--credit", custom("half_decay"), "--strength", "1"], "unknown flag '--strength': --help all lists them"),
    ],
)
def test_wrong_settings_of_a_class_are_refused(line, words, message, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"{line}\n")
    with pytest.raises(ValueError) as error:
        parse_arguments([*WORDS, "--config", str(file), *words])
    assert str(error.value).startswith(message.format(file=file)) and "\n" not in str(error.value)


def test_a_setting_with_the_name_of_a_flag_is_refused(tmp_path):
    lines = ("from dataclasses import dataclass", "@dataclass", "class A:", " reward: str = ''", " credit = print")
    (tmp_path / "a.py").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="its setting 'reward' is a flag of every run: rename it"):
        parse_arguments(["--algo", "grpo", "--credit", f"{tmp_path / 'a.py'}:A"])


def help_page(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        parse_arguments([*argv], protocols={"demo": ["demo"]})
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("algo", ["spo_tree", "fipo"])
def test_the_full_help_lists_every_flag_once_with_its_text(algo, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    page = help_page(capsys, "--algo", algo, "--help", "all")
    assert max(map(len, page.splitlines())) <= 120
    shown = re.findall(r"^  --(\w+)(.*(?:\n {34}.*)*)", page, re.MULTILINE)
    texts = {flag: " ".join(text.split()) for flag, text in shown}
    config_class = ALGORITHMS[algo][0]
    known = {f.name for of in (config_class, DataArguments, ModelConfig, ScriptArguments) for f in fields(of) if f.init}
    assert len(shown) == len(texts) and set(texts) == known | {"config"}
    for name in knobs_of(config_class):
        assert len(texts[name].split()) > 3 and texts[name].endswith("]"), name
    assert texts["max_steps"].startswith("N ") and texts["learning_rate"].endswith("]")
    assert re.findall(r"^(\S[^\n]*):$", page, re.MULTILINE)[:2] == ["Run and checkpoints", "Model"]


def test_the_short_help_has_the_flags_that_act_with_a_sentence_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = help_page(capsys, "--algo", "vine_ppo", "--help")
    flags = re.findall(r"^  --(\w+)", page, re.MULTILINE)
    assert max(map(len, page.splitlines())) <= 80 and len(flags) == len({*flags})
    assert {"output_dir", "max_steps", "beta", "use_vllm", "step_splitter"} <= {*flags}
    assert {"lora_r", "weight_decay", "tree_branching"}.isdisjoint(flags) and "tree_branching" in page
    assert "[vine_ppo]" in page and all(name in page for name in ALGORITHMS)


# Wrong names are found before torch and TRL are imported, and no right one is refused


def test_every_field_is_known():
    classes = [ModelConfig, DataArguments, ScriptArguments, *(config_class for config_class, _ in ALGORITHMS.values())]
    missing = {f.name for of in classes for f in fields(of) if f.init} - field_names()
    assert not missing, f"settings/early.py does not find {missing} in the sources: name their file there"


@pytest.mark.parametrize(("word", "targets"), [("q_proj", ["q_proj"]), ("all-linear", "all-linear"), (".*q", ".*q")])
def test_one_target_of_lora(word, targets, tmp_path):
    (tmp_path / "my.yaml").write_text(f"use_peft: true\nlora_target_modules: {word!r}\n")
    for argv in (["--config", str(tmp_path / "my.yaml")], ["--use_peft", "--lora_target_modules", word]):
        assert parse_arguments(argv).model.lora_target_modules == targets


def test_a_right_name_in_any_spelling_passes():
    flags = "--use-vllm --no_bf16 --no-leave-own-out --learning_rate=-1 --lora_r 3 --dataset_name demo --reward demo -x"
    check_names([*flags.split(), "--algo", "vine_ppo", "--config", "embedded"])


def test_names_beside_a_class_are_left_to_the_file_of_the_class(tmp_path):
    (tmp_path / "my.yaml").write_text("credit: mine.py:GroupWords\nstrength: 1\n")
    for argv in (["--config", str(tmp_path / "my.yaml"), "--power", "1"], ["--credit", "mine.py:G", "--power", "1"]):
        check_names(argv)
    with pytest.raises(ValueError, match="unknown algorithm 'gro'"):
        check_names(["--algo", "gro", "--credit", "mine.py:G", "--power", "1"])


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (
            ["train", "--config", "s_trace/qwen3_4b_s_trac", "--algo", "strace", "--learnig_rate", "3"],
            "error: 's_trace/qwen3_4b_s_trac' is no file and no recipe: did you mean 's_trace/qwen3_4b_s_trace'?\n"
            "error: unknown algorithm 'strace': did you mean 's_trace'?\n"
            "error: unknown flag '--learnig_rate': did you mean '--learning_rate'?\n",
        ),
        (["plan", "--jsn", "--prompts", "3"], "error: unknown flag '--jsn': did you mean '--json'?\n"),
    ],
)
def test_torch_is_not_imported_for_it(words, errors, tmp_path):
    heavy = "print(*({'torch', 'trl', 'transformers'} & sys.modules.keys()))"
    script = f"import atexit, sys\nfrom trl_credit import cli\natexit.register(lambda: {heavy})\nsys.exit(cli.main())"
    run = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stderr, run.stdout.strip()) == (2, errors, "")
