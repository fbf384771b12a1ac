"""The sizes that `trl-credit plan` knows without a model's configuration, and the GPUs of a recipe."""

import json

import pytest
from transformers import Qwen3Config

from trl_credit.lab.plan import read_shape
from trl_credit.lab.plan.shapes import _table, known_sizes, shape_of
from trl_credit.settings.files import read_settings
from trl_credit.settings.recipes import SFT, all_recipes


# totals of the published weights, tied ones counted once
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": 1_543_714_304,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-8B-Base": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B-Base": 30_532_122_624,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "microsoft/rho-math-1b-v0.1": 1_100_048_384,
    "deepseek-ai/deepseek-math-7b-base": 6_910_365_696,
}


def test_the_table_gives_the_published_parameters():
    assert PUBLISHED.keys() == _table()["sizes"].keys()
    shapes = {name: shape_of(known_sizes(name)[1]) for name in PUBLISHED}
    assert {name: shape.parameters for name, shape in shapes.items()} == PUBLISHED
    # 30B-A3B: 3.3 billion active, of which embeddings and head are 0.6
    assert shapes["Qwen/Qwen3-30B-A3B-Base"].matrix == pytest.approx(3.35e9 - 2 * 151_936 * 2048, rel=0.01)
    assert shapes["Qwen/Qwen3-8B"].attention == 4096 and shapes["Qwen/Qwen3-8B"].keys == 1024


def models_of_recipes() -> dict[str, str]:
    return {name: read_settings([name])[0]["model_name_or_path"] for name in all_recipes()}


@pytest.mark.slow
def test_every_model_of_a_recipe_has_sizes():
    models = models_of_recipes()
    assert {name for name, model in models.items() if model != "demo" and known_sizes(model) is None} == set()
    # a folder that a recipe writes has the model that this recipe starts from
    written = {read_settings([name])[0].get("output_dir"): model for name, model in models.items()}
    folders = [name for name in _table()["tuned"] if name.startswith("runs/")]
    for folder in folders:
        assert known_sizes(folder)[0] == known_sizes(written[folder.removesuffix("_merged")])[0]
    assert set(_table()["tuned"]) <= set(models.values())  # no line that no recipe needs


@pytest.mark.slow
def test_every_recipe_plans_with_its_own_gpus(plan_said):
    """One recipe of each model and number of GPUs; the others plan the same sizes."""
    models, said = models_of_recipes(), {}
    for name, row in all_recipes().items():
        if row.folder not in ("", SFT):
            said.setdefault((models[name], row.about["gpus"]), name)
    for (model, gpus), name in said.items():
        code, text, error = plan_said(name, "--json")
        assert code == 0, error
        plan, (known, _) = json.loads(text), known_sizes(model)
        size = plan["model"]
        adapters = size["trained"] if size["trained"] < size["parameters"] else 0
        assert size["parameters"] - adapters == PUBLISHED[known] and plan["layout"]["processes"] == gpus
        assert f"{gpus} GPU{'s' * (gpus > 1)}, as the recipe says (--num_processes)" in plan["assumed"]
        of = known if model == known else f"{known}, from which {model} is made,"
        assert f"sizes of {of} from the package's table" in plan["assumed"]


def test_gpus_of_the_command_line_and_of_a_configuration_come_first(plan_said):
    recipe = ["--config", "s_trace/qwen3_4b_s_trace"]
    assert "\n2 GPUs: a copy on each" in plan_said(*recipe)[1]
    for words, gpus in ((["--num_processes", 1], "1 GPU"), (["--accelerate_config", "zero2"], "8 GPUs")):
        code, text, _ = plan_said(*recipe, *words)
        assert code == 0 and f"\n{gpus}: " in text and "as the recipe says" not in text
    assert "S-trace on Qwen3-4B\n4.02 billion parameters" in text
    assert "  sizes of Qwen/Qwen3-4B from the package's table" in text


def test_a_folder_comes_before_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen" / "Qwen3-4B"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="no configuration of 'Qwen/Qwen3-4B'"):
        read_shape("Qwen/Qwen3-4B")  # a folder without config.json is a mistake, not the model of the Hub
    Qwen3Config(hidden_size=64, num_hidden_layers=2, vocab_size=500).save_pretrained(folder)
    shape = read_shape("Qwen/Qwen3-4B")
    assert (shape.hidden, shape.layers, shape.source) == (64, 2, None)


@pytest.mark.parametrize("more", [[], ["--parameters", "1.5B", "--layers", "28", "--hidden_size", "1536"]])
def test_adapters_without_a_configuration_name_the_way_to_one(command_said, more):
    code, _, error = command_said("plan", "--model_name_or_path", "no/body", "--use_peft", *more)
    assert code == 2 and "hf download no/body config.json, or name a folder that has config.json" in error
    assert ("leave out --parameters" in error) == bool(more) and "give --parameters" not in error
