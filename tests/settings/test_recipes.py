"""The recipes: each parses, builds its trainer and runs; its `about` says what its fields do; the README lists it."""

import math
import os
import re
from dataclasses import MISSING, fields, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml
from scripts import load_script
from worker import parity

from trl_credit import ALGORITHMS
from trl_credit.cli import training
from trl_credit.settings.arguments import parse_arguments
from trl_credit.settings.files import read_settings
from trl_credit.settings.recipes import meant_recipe


ROOT = Path(__file__).resolve().parents[2] / "examples"
RECIPES = ROOT / "recipes"
EMBEDDED, EMBEDDED_TREE = RECIPES / "embedded.yaml", RECIPES / "embedded_tree.yaml"
PAPERS = ("s_trace", "ha_dw", "grpo_lambda", "gspo", "spo", "dapo", "dr_grpo", "fipo", "entropy_mechanism")
# read by `trl sft` itself, which refuses a key that it does not know: these say what they are for in comments
SFT = sorted(path for path in RECIPES.glob("sft/*.yaml") if path.name != "variants.yaml")
TEXTS, NUMBERS = {"what"}, {"gpus", "prompts_per_batch", "optimizer_steps_per_batch"}
SOURCE = r"Tables? \d|Fig\. \d|Sec\. \d|App\. [A-Z]|abstract|introduction|scripts?\b"


index = load_script("examples/recipes/make_index.py")
ROWS = [row for paper in PAPERS for row in index.rows_of(paper)]
FILES = [row for row in ROWS if not row.flags]
BY_NAME = {(row.folder, row.name): row for row in ROWS}


def test_a_wrong_name_is_answered_with_the_recipe_of_its_algorithm():
    folders = {"p_trace": "s_trace", "opo": "s_trace", "clip_cov": "entropy_mechanism", "kl_cov": "entropy_mechanism"}
    folders |= dict.fromkeys(("grpo", "spo_chain", "spo_tree", "vine_ppo"), "spo")
    without = ("gspo_token", "opd", "rlsd", "sdpo")
    for algo in ALGORITHMS:
        for word in (algo, algo.replace("_", "-"), f"my/{algo}.yaml"):
            pattern = None if algo in without else f"{folders.get(algo, algo)}/*_{algo.removeprefix('spo_')}*"
            assert fnmatch(str(meant_recipe(word)), str(pattern)), word
    partial = {"s_tra": "s_trace/qwen3_4b_s_trace", "recipes/qwen3_4b_gspo.yaml": "s_trace/qwen3_4b_gspo"}
    partial |= {"clip": "entropy_mechanism/qwen2.5_7b_clip_cov", "grpo_lambda_7b": "sft/grpo_lambda_7b", "x": None}
    assert {word: meant_recipe(word) for word in partial} == partial


def name(row) -> str:
    return str(row.relative_to(RECIPES).with_suffix("")) if isinstance(row, Path) else f"{row.folder}/{row.name}"


def build(row, folder: Path):
    small = EMBEDDED_TREE if resolved(row)["rollouts"] == "tree" else EMBEDDED
    # flags win over files: one for model or data would win over the embedded ones
    flags = {key: value for key, value in row.flags.items() if key not in yaml.safe_load(EMBEDDED.read_text())}
    over = index.flags_of(replace(row, flags=flags))
    argv = ["--config", str(row.recipe), str(small), *over, "--output_dir", str(folder)]
    return training.build(argv, command=["trl-credit", "train"])[0]


@cache
def settings_of(file: Path) -> dict:
    return read_settings([str(file)])[0]


def resolved(row) -> dict:
    """Every field of the row's configuration, set by a file, by a flag or by the algorithm's preset."""
    merged = settings_of(row.recipe) | row.flags
    values = {}
    for field in fields(ALGORITHMS[merged["algo"]][0]):
        values[field.name] = field.default if field.default_factory is MISSING else field.default_factory()
    return values | merged


def differences(row, other) -> set[str]:
    ours, theirs = resolved(row), resolved(other)
    changed = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    return changed - {"output_dir", "algo"}


def kind(value):
    """The value, or one text for all numbers but 0 and 1, which often switch something off or on."""
    if isinstance(value, list | tuple):
        return [kind(item) for item in value]
    return "a number" if isinstance(value, int | float) and value not in (0, 1) else value


def one_of_each_kind() -> list:
    """Rows that show each kind of value of every setting, without the settings of the embedded model."""
    small = yaml.safe_load(EMBEDDED.read_text()).keys() | {"output_dir", "tree_segment_length"}
    rows, seen = [], set()
    for row in ROWS:
        kinds = {(key, repr(kind(value))) for key, value in resolved(row).items() if key not in small}
        if not kinds <= seen:
            rows.append(row)
            seen |= kinds
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("row", one_of_each_kind(), ids=name)
def test_two_steps_on_the_embedded_model(row, tmp_path):
    trainer = build(row, tmp_path)
    trainer.reward_funcs[0] = parity  # of the task's own a small batch may have nothing but zeros
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert trainer.state.global_step == 2 and len(rows) == 2
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    assert any(row["grad_norm"] > 0.0 for row in rows)  # some group had signal, and the gradient arrived


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_row_parses_as_it_is_written(row):
    _, data, args, model, _ = parse_arguments(["--config", str(row.recipe), *index.flags_of(row)])
    settings = resolved(row)
    written = settings_of(row.recipe).keys() | row.flags.keys()
    for key in written - {"output_dir", "lora_target_modules"}:  # LoRA's is a list, and peft needs a string
        for part in (data, args, model):
            assert not hasattr(part, key) or getattr(part, key) == settings[key], key
    assert args.output_dir == os.path.abspath(f"runs/{name(row)}")  # two rows never write to one folder
    assert model.model_name_or_path == settings["model_name_or_path"]


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_about_is_complete_and_has_the_batch_and_the_targets_of_the_paper(row):
    settings, about = resolved(row), row.about
    assert all(isinstance(about[key], str) and about[key] for key in TEXTS)
    assert all(type(about[key]) is int and about[key] > 0 for key in NUMBERS)
    assert about.keys() - TEXTS - NUMBERS <= {"target", "note", "measured", "ablates", "adds"}
    gpus, prompts, updates = about["gpus"], about["prompts_per_batch"], about["optimizer_steps_per_batch"]
    accumulation = settings["gradient_accumulation_steps"]
    steps = settings["steps_per_generation"] or accumulation
    responses = settings["per_device_train_batch_size"] * gpus * steps
    assert divmod(responses, settings["num_generations"]) == (prompts, 0)
    assert divmod(steps * settings["num_iterations"], accumulation) == (updates, 0)
    # a group may not be torn apart on any process of the paper's layout, nor on the one process of the test above
    assert settings["per_device_train_batch_size"] * steps % settings["num_generations"] == 0
    assert set(index.targets(row)) <= index.read_paper(row.folder)["rows"].keys()
    assert index.targets(row) or row.about["target"] == index.NO_TARGET
    assert index.targets(row) or "note" in row.about or not row.flags  # a variant of no paper says whose it is


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_fields_exist_and_agree(row):
    settings = resolved(row)
    # SPO limits the sum: a response may take what its prompt leaves, or what the released code allows on GSM8K
    together = row.folder == "spo" and re.match("r1_distill_|deepseekmath_", row.name)
    room = 0 if together else settings["max_prompt_tokens"]
    assert settings["vllm_max_model_length"] == room + settings["max_completion_length"]
    if settings["max_steps"] > 0 and settings["warmup_steps"]:
        assert settings["warmup_steps"] == pytest.approx(0.03 * settings["max_steps"])
    if settings["model_name_or_path"].startswith("runs/"):  # the second part of a run starts from an earlier recipe
        folder, first = settings["model_name_or_path"].removesuffix("_merged").split("/")[1:]
        assert (folder, first) in BY_NAME or (folder, first) in {(row.folder, row.name) for row in index.rows_of("sft")}


@pytest.mark.parametrize("row", [row for row in FILES if row.about.keys() & {"ablates", "adds"}], ids=name)
def test_an_ablation_differs_in_what_it_ablates_alone(row):
    base = BY_NAME[row.folder, Path(yaml.safe_load(row.recipe.read_text())["base"]).stem]
    about = row.about
    assert differences(row, base) == set(about["ablates"] if "ablates" in about else about["adds"])


@pytest.mark.parametrize("row", [row for row in ROWS if row.flags], ids=name)
def test_a_flag_of_a_variant_changes_something(row):
    base = replace(row, flags={})
    for key, value in row.flags.items():
        assert resolved(base).get(key) != value, f"--{key} {value} is the recipe's own"


@pytest.mark.parametrize(
    ("paper", "one", "other", "method"),
    [
        ("s_trace", "qwen3_4b_s_trace", "qwen3_4b_grpo", {"selector", "importance"}),
        ("s_trace", "qwen3_4b_s_trace", "qwen3_4b_p_trace", {"selector"}),
        ("s_trace", "qwen3_4b_opo", "qwen3_4b_grpo", {"baseline", "loss_type", "scale_rewards"}),
        *(
            ("grpo_lambda", f"{model}_grpo_lambda", f"{model}_grpo", {"importance", "trace_lambda", "advantage_floor"})
            for model in ("qwen2.5_math_1.5b", "r1_distill_1.5b")
        ),
        ("spo", "rho_gsm8k_chain_int5", "rho_gsm8k_grpo", {"rollouts", "token_mask"}),
    ],
)
def test_methods_compared_in_one_table_differ_in_the_method_alone(paper, one, other, method):
    assert differences(BY_NAME[paper, one], BY_NAME[paper, other]) == method


@pytest.mark.parametrize("paper", PAPERS)
def test_settings_are_those_of_the_paper(paper):
    for group in index.read_paper(paper)["settings"]:
        assert re.search(SOURCE, group["where"]), group
        matched = [row for row in ROWS if row.folder == paper and any(fnmatch(row.name, w) for w in group["for"])]
        assert matched, group
        for row in matched:
            settings = row.about | resolved(row)
            settings["rows_per_batch"] = settings["prompts_per_batch"] * settings["num_generations"]
            for key, value in group["are"].items():
                if key not in row.flags:  # what the row is about
                    message = f"{name(row)}: {key} is {settings[key]}, {group['where']} has {value}"
                    assert settings[key] == value, message


def test_the_index_is_what_the_yaml_says(capsys):
    assert index.main(["--check"]) == 0, capsys.readouterr().out
    readme = (RECIPES / "README.md").read_text()
    for row in ROWS:
        assert readme.count(f"]({row.folder}/{row.name}.yaml)") == (not row.flags)
        assert not row.flags or readme.count(f"| {row.name} | `--config examples/recipes/{row.folder}/") == 1
    links = re.findall(r"\]\(([^)#]+\.yaml)\)", readme)
    assert all((RECIPES / link).is_file() for link in links) and len(links) == len(FILES) + len(SFT)
