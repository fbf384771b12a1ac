"""Flags over files, files over their bases."""

import re
from argparse import ArgumentParser
from dataclasses import fields

import pytest
import yaml
from custom_functions import custom
from trl import ModelConfig

from trl_credit import ALGORITHMS
from trl_credit.cli.training import make_data, make_rewards
from trl_credit.config import KNOBS
from trl_credit.config.knobs import knobs_of
from trl_credit.data import DataArguments
from trl_credit.demo import TASKS, demo_dataset, demo_model_path, demo_reward
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import recipe_of
from trl_credit.settings.arguments import ScriptArguments, inactive_settings, parse_arguments, with_source
from trl_credit.settings.files import read_settings
from trl_credit.settings.help import HelpPages
from trl_credit.support.functions import names_alone


def read_config(paths):
    return read_settings(paths)[0]


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
    assert read_config(files) == {"algo": "s_trace", "beta": 0.2, "learning_rate": 1e-6, "epsilon": 0.4}
    script, _, args, _, config = parse_arguments(
        ["--config", *files, "--epsilon", "0.25", "--output_dir", str(tmp_path / "out")]
    )
    assert (script.algo, args.beta, args.epsilon, config["epsilon"]) == ("s_trace", 0.2, 0.25, 0.4)


def test_what_a_file_says_about_itself_is_no_setting(tmp_path):
    write(
        tmp_path,
        root="about: {what: 'a base', gpus: 8}\nalgo: grpo\n",
        leaf="about:\n  what: a run\n  learning_rate: 1.0\nbase: root.yaml\nbeta: 0.1\n",
        bare="base: root.yaml\nbeta: 0.2\n",
    )
    leaf, bare = str(tmp_path / "leaf.yaml"), str(tmp_path / "bare.yaml")
    assert read_config([leaf]) == {"algo": "grpo", "beta": 0.1}
    assert read_config([leaf, bare]) == {"algo": "grpo", "beta": 0.2}
    _, _, args, _, config = parse_arguments(["--config", leaf, "--output_dir", str(tmp_path / "out")])
    assert args.beta == 0.1 and args.learning_rate != 1.0 and config == {"algo": "grpo", "beta": 0.1}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "base: b.yaml\n", "b": "base: a.yaml\n"}, "is its own `base`"),
        ({"a": "base: none.yaml\n"}, "check --config and `base`"),
        ({"a": "about: a run\n"}, "^`about` in '.*a.yaml' must hold [^\n]*$"),
        ({"a": "about:\n"}, "^`about` in '.*a.yaml' must hold"),
        ({"a": "base: b.yaml\n", "b": "about: [1]\n"}, "^`about` in '.*b.yaml' must hold"),
        ({"a": "evaluation_protocol: demo\n"}, "^evaluation_protocol='demo' is unknown.*is set in .*a.yaml"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, files, message):
    write(tmp_path, **files)
    with pytest.raises(ValueError, match=message):
        parse_arguments(["--config", str(tmp_path / "a.yaml"), "--output_dir", str(tmp_path / "out")])


def test_the_embedded_model_is_the_default_and_has_a_name(tmp_path):
    write(
        tmp_path,
        a="reward: demo\ndecontaminate: math500\nmodel_name_or_path: demo\nenv: {TOKENIZERS_PARALLELISM: 'false'}\n",
    )
    script, data, args, model, _ = parse_arguments(["--config", str(tmp_path / "a.yaml"), "--output_dir", "out"])
    assert (
        script.reward == ["demo"]
        and data.decontaminate == ["math500"]
        and model.model_name_or_path == demo_model_path()
        and args.max_steps == 200
    )
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


HEADINGS = [
    *(
        "Run and checkpoints",
        "Model",
        "Data",
        "Rewards",
        "Credit",
        "Steps and turns",
        "Groups and prompts",
        "Segments",
        "Rollouts",
        "Evaluation",
    ),
    *("TRL's (GRPOConfig)", "transformers' (TrainingArguments)"),
]
RUN_ORDER = (
    "seed logging_steps report_to run_name save_strategy save_steps save_total_limit save_only_model "
    "resume_from_checkpoint push_to_hub hub_model_id hub_private_repo hub_strategy hub_revision hub_token "
    "length_sort shared_prefix skip_zero_advantage expert_drift log_credit log_credit_groups overwrite_output_dir "
    "allow_changed nonfinite_patience"
).split()


def page_of_help(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        parse_arguments([*argv], protocols={"demo": ["demo"]})
    assert stop.value.code == 0
    return capsys.readouterr().out


def parts_of_help(capsys, monkeypatch, *argv):
    """The flags of `--help all` under each heading, with their text."""
    monkeypatch.setenv("COLUMNS", "120")
    shown = page_of_help(capsys, *argv, "--help", "all")
    assert max(map(len, shown.splitlines())) <= 120
    headings = re.split(r"^(\S[^\n]*):$", shown, flags=re.MULTILINE)[1:]
    return {
        title: {flag[0]: " ".join(flag[1].split()) for flag in re.findall(r"^  --(\w+)(.*(?:\n {34}.*)*)", text, re.M)}
        for title, text in zip(headings[::2], headings[1::2], strict=True)
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_flag_is_listed_once_under_its_heading(algo, capsys, monkeypatch):
    parts = parts_of_help(capsys, monkeypatch, "--algo", algo)
    assert list(parts) == HEADINGS and all(parts.values())
    shown = {flag: text for flags in parts.values() for flag, text in flags.items()}
    assert len(shown) == sum(map(len, parts.values()))
    config_class = ALGORITHMS[algo][0]
    known = {f.name for of in (config_class, DataArguments, ModelConfig, ScriptArguments) for f in fields(of) if f.init}
    assert set(shown) == known | {"config"}
    for name in knobs_of(config_class):
        assert "(default: " in shown[name] and len(shown[name].partition(" (default: ")[0].split()) > 2, name
    for title, flags in (
        ("Run and checkpoints", "algo config learning_rate log_credit"),
        ("Model", "lora_r"),
        ("Data", "dataset_name"),
        ("Rewards", "reward reward_weights reward_timeout reward_range difficulty_reward"),
        ("Credit", "trace_lambda behavior_logps prompt_average"),
        ("Steps and turns", "returns step_gamma trace_unit turn_average"),
        ("Segments", "segmentation policy_loss segment_advantage"),
        ("Rollouts", "rollouts tree_branching replay_cap"),
        ("Evaluation", "evaluation_protocol evaluate_every"),
        ("TRL's (GRPOConfig)", "loss_type"),
        ("transformers' (TrainingArguments)", "weight_decay"),
    ):
        assert set(flags.split()) <= parts[title].keys()
    run = list(parts["Run and checkpoints"])
    assert run[run.index("seed") :] == RUN_ORDER
    assert parts["Run and checkpoints"]["max_steps"].startswith("N ")
    assert parts["Run and checkpoints"]["num_generations"].startswith("N ")
    assert "by one of demo" in shown["evaluation_protocol"] and "s_trace (" in shown["algo"]
    for name, text in shown.items():
        assert other_defaults(text) == [] and re.match(r"\S+ (?:… )?\w", text), name


def other_defaults(text):
    """What the help of a flag says of its default beside the one at its end."""
    said, _, default = text.removesuffix(")").rpartition(" (default: ")
    claims = re.findall(r"\(default\)|\(default:[^)]*", said)
    for sentence in re.split(r"(?<=[.!?]) ", said):
        if not re.search(r"\b(if|where)\b", sentence, re.IGNORECASE):  # "If None, it defaults to …" is no default
            claims += re.findall(r"(?i:default)(?:s to| of) [`'\"]*([\w.+-]*\w)", sentence)
    return [claim for claim in claims if claim != default]


@pytest.mark.parametrize(
    ("text", "default", "said"),
    [
        ("KL. If `0.0` (default), no model. Use `0.001`.", "0.001", "KL. If `0.0`, no model. Use `0.001`."),
        ("A type. It defaults to `'float32'`.", "bfloat16", "A type."),
        ("High, so the default of 0.2 rarely acts; set it.", "0.5", ""),
        ("Metric. Defaults to 'loss'.", None, "Metric."),
        ("If not set, it defaults to `x`.", None, "If not set, it defaults to `x`."),
    ],
)
def test_the_default_of_a_preset_is_the_only_one_in_the_help_of_a_flag(text, default, said):
    action = ArgumentParser().add_argument("--beta", help=text, default=default)
    shown = " ".join(HelpPages("x", "", [action], {}).full().partition("--beta TEXT")[2].split())
    assert shown == f"{said} (default: {default})".strip() and other_defaults(shown) == []
    assert default is None or bool(other_defaults(f"{text} (default: {default})")) == (said != text)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_short_help_has_our_flags_and_the_first_ones_of_trl(algo, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = page_of_help(capsys, "--algo", algo, "--help")
    flags = re.findall(r"^  --(\w+)", page, re.MULTILINE)
    assert len(page.splitlines()) < 200 and max(map(len, page.splitlines())) <= 80
    assert re.search(r"^--help all describes all \d{3} flags", page.splitlines()[-1])
    assert {"output_dir", "max_steps", "num_generations", "max_completion_length", "beta", "use_vllm"} <= {*flags}
    assert {"lora_r", "weight_decay", "loss_type"}.isdisjoint(flags) and len(flags) == len({*flags})
    words = {*re.findall(r"\w+", page)}
    of_ours = {f.name for of in (DataArguments, ScriptArguments) for f in fields(of)} | KNOBS.keys()
    assert of_ours - {*flags} <= words  # the others are named
    acts = {"s_trace": "selective_rate", "vine_ppo": "step_splitter", "ha_dw": "difficulty_scale"}
    assert all((knob in flags) == (name == algo) for name, knob in acts.items())
    assert f"[{algo}]" in page and all(name in page for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('set allow_changed=["learning_rate", "beta"].', "set --allow_changed learning_rate beta."),
        ("resume_from_checkpoint=True", "--resume_from_checkpoint true"),
        ("leave overwrite_output_dir=True out", "leave --overwrite_output_dir true out"),
        ("beta=0.1 with allow_changed='x'", "beta=0.1 with allow_changed='x'"),
    ],
)
def test_what_to_set_is_shown_as_flags(said, shown, tmp_path):
    assert str(with_source(ValueError(said), [])) == shown
    (tmp_path / "own.yaml").write_text("beta: 0.1\n")
    with_file = str(with_source(ValueError(f"beta=0.2: {said}"), ["--config", str(tmp_path / "own.yaml")]))
    assert with_file.startswith(f"beta=0.2: {shown.rstrip('.')} (beta is set in ")


# The settings of an algorithm that is a class


WORDS = ["--algo", "grpo", "--credit", custom("GroupWords"), "--output_dir", "unused"]


def test_the_settings_of_a_class_are_flags_and_lines_of_a_file(tmp_path):
    args = parse_arguments([*WORDS, "--strength", "0.7", "--cap", "2", "--signs", "2", "-2", "--grows", "true"]).args
    assert (args.strength, args.cap, args.signs, args.grows) == (0.7, 2.0, [2, -2], True)
    file = tmp_path / "a.yaml"
    file.write_text(
        f"algo: grpo\ncredit: {custom('GroupWords')}\nstrength: 1\ncap: null\nsigns: [2, -2]\ngrows: true\n"
    )
    args = parse_arguments(["--config", str(file), "--grows", "false", "--strength=0.2"]).args
    assert (args.strength, args.cap, args.signs, args.grows) == (0.2, None, [2, -2], False)
    assert inactive_settings(["--config", str(file), "--gamma", "0.9"], lacks={"strength", "cap", "pair"}) == [
        *("cap", "strength")
    ]


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("", ["--strenth", "1"], "unknown flag '--strenth': did you mean '--strength'?"),
        ("strenth: 1", [], "unknown field 'strenth' in {file}: did you mean 'strength'?"),
        ("strength: high", [], "strength in {file}: invalid float value: 'high'"),
        ("", ["--signs", "1.5"], "--signs: invalid int value: '1.5'"),
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


def test_what_is_not_imported_is_left_out_with_a_warning(caplog):
    words = ["--algo", "grpo", "--credit", "gone.py:Words", "--strength", "1", "--max_steps", "3"]
    with names_alone():
        assert parse_arguments(words).args.max_steps == 3
    assert "credit=gone.py:Words is not imported here: strength left out" in caplog.text


def test_the_help_lists_the_settings_of_a_class(capsys):
    with pytest.raises(SystemExit):
        parse_arguments([*WORDS, "--help", "all"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--strength X Weight of such a token. Must be at least 0 and finite. (default: 0.5)" in said
    assert "--cap X A setting of GroupWords. (default: None)" in said and "--_batches" not in said
