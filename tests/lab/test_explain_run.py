"""`trl-credit explain` on the folder of a run without a rollout log: responses are sampled from its model."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from trl_credit.cli import main
from trl_credit.demo import demo_reward
from trl_credit.lab.explain.sampling import PROMPTS, RESPONSES


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> Path:
    """A run of the embedded task from the command line."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    words = "train --max_steps 1 --temperature 0.7 --per_device_train_batch_size 8 --log_credit 0 --output_dir".split()
    assert main([*words, str(folder)]) in (0, None)
    return folder


@pytest.fixture
def finished(trained_run, tmp_path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.mark.slow
def test_a_run_without_a_log_samples_responses(finished, command_said):
    words = ["explain", finished, "--algo", "grpo", "s_trace"]
    code, said, error = command_said(*words)
    what = f"{PROMPTS} prompts × {RESPONSES} responses from its model"
    assert code == 0 and f"{finished} has no rollout log: samples {what}" in error
    assert f"{finished} has no rollout log: sampled {what}, kept in explain.jsonl." in said
    assert "| GRPO " in said and "| S-trace " in said and what in (finished / "explain.html").read_text()
    rows = [json.loads(line) for line in (finished / "explain.jsonl").read_text().splitlines()]
    assert len(rows) == PROMPTS * RESPONSES and len({row["prompt"] for row in rows}) == PROMPTS
    assert [row["reward"] for row in rows] == demo_reward([r["completion"] for r in rows], [r["answer"] for r in rows])
    assert all("".join(row["tokens"]) == row["completion"] + "<eos>" for row in rows if not row["truncated"])
    assert len({row["completion"] for row in rows}) > PROMPTS

    table = said[: said.index("\n\n")]
    again = command_said(*words)[1]
    assert again[: again.index("\n\n")] == table  # the run's seed
    kept = command_said("explain", finished / "explain.jsonl", "--algo", "grpo", "s_trace")[1]
    assert kept[: kept.index("\n\n")] == table


def test_a_run_whose_recipe_does_not_name_its_data_is_refused(finished, command_said):
    def refused(message: str) -> None:
        code, _, error = command_said("explain", finished)
        last = error.splitlines()[-1]
        assert code == 2 and message in last and "--log_credit 10" in last and f"--model {finished}" in last

    record = finished / "credit_run.json"
    known = json.loads(record.read_text())
    del known["task"]  # as of a run from Python, or of an earlier version
    known["identity"]["data"]["rows"] = 64  # other data
    record.write_text(json.dumps(known))
    refused("and it does not name what it was trained on (data.rows 64 → 1024)")
    known["identity"]["data"]["rows"] = 1024
    known["identity"]["reward_funcs"] = {"mine": "SHA-256 0"}
    record.write_text(json.dumps(known))
    refused('(rewards ["mine"] → ["demo_reward"])')
    record.unlink()
    refused("its recipe.yaml names no data (a run from Python?)")
    (finished / "recipe.yaml").unlink()
    refused("no recipe.yaml that names data and reward")
    assert not (finished / "explain.html").exists()


def test_only_what_the_responses_depend_on_is_read_of_a_recipe(finished, command_said):
    record, recipe = finished / "credit_run.json", finished / "recipe.yaml"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({name: value for name, value in known.items() if name != "task"}))
    of_a_cluster = {"use_vllm": True, "deepspeed": "gone.json", "algo": "spo_tree", "bf16": True, "env": {"PATH": "x"}}
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | of_a_cluster))
    assert command_said("explain", finished, "--algo", "grpo")[0] == 0
    recipe.write_text("reward: gone.py:f\n")
    code, _, error = command_said("explain", finished)
    assert code == 2 and "what the run names cannot be used" in error.splitlines()[-1]


def test_a_folder_without_a_model_is_refused(finished, command_said):
    (finished / "config.json").unlink()
    code, said, error = command_said("explain", finished)
    assert code == 2 and not said and error.startswith(f"error: {finished} has neither a rollout log nor a model: ")


def test_a_step_needs_a_log(finished, command_said):
    code, _, error = command_said("explain", finished, "--step", "3")
    assert code == 2 and "has no rollout log" in error
