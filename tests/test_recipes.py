"""The recipes: each parses, builds its trainer and runs; its `about` says what its fields do; the README lists it."""

import importlib.util
import json
import math
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml
from trl import ModelConfig
from trl.scripts import sft

from trl_credit import ALGORITHMS
from trl_credit.cli import read_config
from trl_credit.demo import demo_dataset, demo_model_path
from trl_credit.demo.task import work_out


ROOT = Path(__file__).resolve().parents[1] / "examples"
RECIPES = ROOT / "recipes"
EMBEDDED, EMBEDDED_TREE = RECIPES / "embedded.yaml", RECIPES / "embedded_tree.yaml"
README = (RECIPES / "README.md").read_text()
# read by `trl sft` itself, which refuses a key that it does not know: these say what they are for in comments
SFT = sorted(RECIPES.glob("sft/*.yaml"))
ALL = sorted(p for p in RECIPES.glob("*/*.yaml") if not p.name.startswith("base") and p not in SFT)
TEXTS, NUMBERS = {"what", "should_reach"}, {"gpus", "prompts_per_batch", "optimizer_steps_per_batch"}
LENGTHS = {"max_prompt_tokens", "max_completion_length", "max_steps"}
SOURCE = r"Table \d|Fig\. \d|Sec\. \d|App\. [A-Z]|[Aa]bstract"

spec = importlib.util.spec_from_file_location("train_script", ROOT / "train.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def name(path: Path) -> str:
    return str(path.relative_to(RECIPES).with_suffix(""))


def embedded(recipe: Path) -> Path:
    return EMBEDDED_TREE if resolved(recipe)["rollouts"] == "tree" else EMBEDDED


def build(recipe: Path, folder: Path):
    return script.build(["--config", str(recipe), str(embedded(recipe)), "--output_dir", str(folder)]).trainer


def about(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["about"]


def resolved(path: Path) -> dict:
    """Every field of the recipe's configuration, set by a file or by the algorithm's preset."""
    merged = read_config([str(path)])
    values = {}
    for field in fields(ALGORITHMS[merged["algo"]][0]):
        values[field.name] = field.default if field.default_factory is MISSING else field.default_factory()
    return values | merged


def differences(path: Path, other: Path) -> set[str]:
    ours, theirs = resolved(path), resolved(other)
    changed = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    return changed - {"output_dir", "algo"}


@pytest.mark.parametrize("path", ALL, ids=name)
def test_two_steps_on_the_embedded_model(path, tmp_path, one_thread):
    trainer = build(path, tmp_path)
    own, shrunk = read_config([str(path)]), read_config([str(embedded(path))])
    for key in own.keys() - shrunk.keys() - {"output_dir"}:
        if key in {f.name for f in fields(trainer.args)}:  # the others are the script's or the model's
            assert getattr(trainer.args, key) == own[key], key
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert trainer.state.global_step == 2 and len(rows) == 2
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    assert any(row["grad_norm"] > 0.0 for row in rows)  # some group had signal, and the gradient arrived


def test_embedded_changes_model_data_and_lengths_alone():
    model = {"model_name_or_path", "use_vllm", "bf16", "temperature", "top_p"}
    data = {"dataset_name", "reward"}
    run = {"logging_steps", "save_strategy"}
    assert set(yaml.safe_load(EMBEDDED.read_text())) == model | data | LENGTHS | run
    assert set(yaml.safe_load(EMBEDDED_TREE.read_text())) == {"base", "tree_segment_length"}


@pytest.mark.parametrize("path", ALL, ids=name)
def test_about_is_complete(path):
    said = about(path)
    assert all(isinstance(said[key], str) and said[key] for key in TEXTS)
    assert all(type(said[key]) is int and said[key] > 0 for key in NUMBERS)
    assert said.keys() - TEXTS - NUMBERS in (set(), {"ablates"}, {"adds"})


@pytest.mark.parametrize("path", ALL, ids=name)
def test_about_says_what_the_batch_is(path):
    given, said = resolved(path), about(path)
    gpus, prompts, updates = said["gpus"], said["prompts_per_batch"], said["optimizer_steps_per_batch"]
    accumulation = given["gradient_accumulation_steps"]
    steps = given["steps_per_generation"] or accumulation
    responses = given["per_device_train_batch_size"] * gpus * steps
    assert divmod(responses, given["num_generations"]) == (prompts, 0)
    assert divmod(steps * given["num_iterations"], accumulation) == (updates, 0)
    # a group may not be torn apart on any process of the paper's layout, nor on the one process of the test above
    assert given["per_device_train_batch_size"] * steps % given["num_generations"] == 0


@pytest.mark.parametrize("path", ALL, ids=name)
def test_fields_exist_and_agree(path):
    given = resolved(path)
    config_class, _ = ALGORITHMS[given["algo"]]
    script_fields = {"algo", "dataset_name", "prompt_style", "max_prompt_tokens", "reward"}
    known = {f.name for cls in (config_class, ModelConfig) for f in fields(cls)} | script_fields
    assert set(given) <= known
    assert given["output_dir"] == f"runs/{name(path)}"  # two recipes never write to one folder
    assert given["vllm_max_model_length"] == given["max_prompt_tokens"] + given["max_completion_length"]
    if given["max_steps"] > 0 and given["warmup_steps"]:
        assert given["warmup_steps"] == pytest.approx(0.03 * given["max_steps"])
    if given["model_name_or_path"].startswith("runs/"):  # the second part of a run starts from an earlier recipe
        assert RECIPES / f"{given['model_name_or_path'].removeprefix('runs/')}.yaml" in ALL


@pytest.mark.parametrize("path", [p for p in ALL if about(p).keys() & {"ablates", "adds"}], ids=name)
def test_an_ablation_differs_in_what_it_ablates_alone(path):
    base = path.parent / yaml.safe_load(path.read_text())["base"]
    said = about(path)
    assert base in ALL and differences(path, base) == set(said["ablates"] if "ablates" in said else said["adds"])


def test_methods_compared_in_one_table_differ_in_the_method_alone():
    def changed(paper: str, one: str, other: str) -> set[str]:
        return differences(RECIPES / paper / f"{one}.yaml", RECIPES / paper / f"{other}.yaml")

    for size in ("1.7b", "4b", "8b"):
        row = f"qwen3_{size}_{{}}".format
        assert changed("s_trace", row("s_trace"), row("p_trace")) == {"selector"}
        assert changed("s_trace", row("p_trace"), row("grpo")) <= {"importance", "use_bias_correction_kl"}
        assert changed("s_trace", row("opo"), row("grpo")) == {"baseline", "loss_type", "scale_rewards"}
    for size in ("1.5b", "3b", "7b"):
        for style in ("recent", "both"):
            one = f"{size}_trace_{style}_0.99"
            assert changed("grpo_lambda", one, f"{size}_trace_{style}_0.98") == {"trace_lambda"}
            assert changed("grpo_lambda", one, f"{size}_weight_{style}_0.99") == {"importance", "loss_weight"}
        assert changed("grpo_lambda", f"{size}_trace_recent_0.99", f"{size}_trace_both_0.99") == {"trace_style"}
    assert changed("spo", "r1_distill_math_tree_4k", "r1_distill_math_tree_2k") == {
        "model_name_or_path", "max_completion_length", "vllm_max_model_length"
    }  # fmt: skip


@pytest.mark.parametrize("path", ALL + SFT, ids=name)
def test_readme_lists_it(path):
    assert README.count(f"]({path.relative_to(RECIPES)})") == 1


def test_readme_links_exist_and_its_numbers_have_a_source():
    links = re.findall(r"\]\(([^)#]+\.yaml)\)", README)
    assert all((RECIPES / link).is_file() for link in links)
    rows = [line for line in README.splitlines() if line.startswith("|") and "](" in line]
    for row in rows:
        assert re.search(rf"{SOURCE}|[Nn]ot (given|found)", row), row


@pytest.mark.parametrize("path", ALL, ids=name)
def test_what_it_should_reach_has_a_source_and_stands_in_the_readme(path):
    reach = about(path)["should_reach"]
    assert re.search(rf"{SOURCE}|not (given|found)", reach)
    row = next(line for line in README.splitlines() if f"]({path.relative_to(RECIPES)})" in line)
    if "Table" in reach:
        assert re.search(r"\(Table \d\)", reach)[0][1:-1] in row
        assert all(number in row for number in re.findall(r"\d+\.\d", reach.split("(")[0]))


@pytest.mark.parametrize("path", SFT, ids=name)
def test_warm_start_with_trl_sft(path, tmp_path, one_thread):
    settings = yaml.safe_load(path.read_text())
    per_device, accumulation = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    gpus, examples = map(int, re.search(r"^# GPUs: (\d+), examples per update: (\d+)", path.read_text(), re.M).groups())
    assert per_device * gpus * accumulation == examples and settings["output_dir"] == f"runs/{name(path)}"

    folder = tmp_path / "data"
    folder.mkdir()
    prompts = demo_dataset(n=64)["prompt"]
    rows = [json.dumps({"prompt": prompt, "completion": work_out(prompt)}) for prompt in prompts]
    (folder / "train.jsonl").write_text("\n".join(rows))
    shrunk = {"model_name_or_path": demo_model_path(), "dataset_name": folder, "output_dir": tmp_path / "out"}
    shrunk |= {"bf16": "false", "use_cpu": "true", "max_steps": 2, "logging_steps": 1, "report_to": "none"}
    local = {"model_revision": "main", "dataset_config": "default"}  # of the Hub, neither of which a folder has
    assert settings.keys() >= {"learning_rate", "num_train_epochs", "max_length"}
    argv = [word for key, value in (shrunk | local).items() for word in (f"--{key}", str(value))]
    sft.main(*sft.make_parser().parse_args_and_config(["--config", str(path), *argv]))
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    losses = [row["loss"] for row in state["log_history"] if "loss" in row]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
