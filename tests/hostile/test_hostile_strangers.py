"""The folder of a run from somebody else: no command imports what it names, writes through its links, or reads without
bounds."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from evaluation_helpers import stored
from passes_helpers import with_slow

from trl_credit.cli import main
from trl_credit.config import FUNCTION_KNOBS
from trl_credit.observe.schema import steps
from trl_credit.settings.arguments import parse_arguments
from trl_credit.support.files import LARGEST_LINES, read_json


pytestmark = pytest.mark.hostile("folders of strangers", "refused")
survived = pytest.mark.hostile("folders of strangers", "survived")
OWN = "open('ran', 'w')\ndef demo_reward(completions, **kwargs):\n    return [1.0] * len(completions)\n"
WORDS = "--algo grpo --max_steps 1 --per_device_train_batch_size 8 --disable_tqdm true --output_dir".split()
FEW = "--quiet --samples 1 --max_problems 2".split()
# as a file of the folder may name a function in it; the folder is `run` in the current one
NAMES = ("run/own.py:demo_reward", "/proc/self/cwd/run/own.py:demo_reward", "run.own.demo_reward")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("theirs") / "run"
    assert main(["train", *WORDS, str(folder), "--log_credit", "1"]) == 0
    (folder / "own.py").write_text(OWN)
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch) -> Path:
    """The working folder, with the stranger's `run` in it."""
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("run.own", "run"):
        sys.modules.pop(name, None)


def change(path: str, **values) -> None:
    """Changes parts of a JSON or YAML file; a value of `None` removes one."""
    content = (json.loads if path.endswith(".json") else yaml.safe_load)(Path(path).read_text()) | values
    Path(path).write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def names_the_reward(name: str) -> None:
    change("run/credit_run.json", task={"dataset_name": "demo", "reward": [name]})


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_that_the_folder_names_is_not_imported(here, command_said, name):
    names_the_reward(name)
    code, _, error = command_said("eval", "run", *FEW)
    assert code == 2 and "own" in error and "`trl-credit eval run --trust_run`" in error, error
    assert not Path("ran").exists() and "run.own" not in sys.modules and str(here) not in sys.path


@survived
@pytest.mark.parametrize("more", ["--trust_run", "--reward run/own.py:demo_reward"])
def test_what_the_user_names_or_trusts_is_imported(here, command_said, more):
    names_the_reward("run.own.demo_reward")
    code, _, error = command_said("eval", "run", *FEW, *more.split())
    assert code == 0 and Path("ran").exists(), error


def test_samples_are_not_judged_again_by_what_they_name(here, command_said):
    stored("run/evaluation", "a", [[True]], reward="run/own.py:demo_reward")
    words = ["eval", "--rescore", "--output_dir", "run/evaluation"]
    code, _, error = command_said(*words)
    assert code == 2 and f"`trl-credit {' '.join(words)} --trust_run`" in error and not Path("ran").exists()
    command_said(*words, "--trust_run")
    assert Path("ran").exists()


READING = ["view run", "explain run --algo grpo", "compare --runs run", "plan run/recipe.yaml", "push run --repo_id ''"]
READING += [f"eval run {' '.join(FEW)} --protocol demo", f"eval run {' '.join(FEW)}"]


@survived
@pytest.mark.parametrize("command", READING)
def test_no_command_imports_what_a_folder_holds(here, command_said, command):
    """Every setting that can name a function does, the model has code, and what torch pickles runs it."""
    names = dict.fromkeys("credit selector token_mask baseline step_splitter segmentation".split(), "run.own.f")
    change("run/recipe.yaml", **names, trust_remote_code=True)
    for path in ("run", "run/checkpoint-1"):
        record = read_json(f"{path}/credit_run.json")
        change(f"{path}/credit_run.json", identity=record["identity"] | names)
        change(f"{path}/config.json", auto_map={"AutoModelForCausalLM": "own.f", "AutoConfig": "own.f"})
        for file in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({"state": Pickled()}, Path(path, file))
    for _, path in steps("run"):
        lines = path.read_text().splitlines(keepends=True)
        header = json.loads(lines[0]) | {"settings": names}
        path.write_text("".join([json.dumps(header) + "\n", *lines[1:]]))
    code, _, error = command_said(*command.replace("''", "a/b/c").split())
    assert code in (0, 2) and "Traceback" not in error and not Path("ran").exists(), error
    assert "run.own" not in sys.modules and str(here) not in sys.path


class Pickled:
    def __reduce__(self):
        return open, ("ran", "w")


@pytest.mark.parametrize("file", ["optimizer.pt", "rng_state.pth"])
def test_a_checkpoint_that_holds_code_is_not_resumed(here, command_said, file):
    torch.save({"state": Pickled()}, f"run/checkpoint-1/{file}")
    more = "run --max_steps 2 --resume_from_checkpoint true".split()
    code, _, error = command_said("train", *WORDS, *more)
    assert code == 2 and not Path("ran").exists()
    assert "a file of the checkpoint" in error.splitlines()[-1], error


# Links


@pytest.fixture
def outside(here) -> Path:
    path = here / "outside"
    path.mkdir()
    (path / "file").write_text("mine")
    (path / "step-00000009.jsonl").write_text("mine")
    (path / "folder").mkdir()
    return path


WRITES = {
    "view run": ("credit_log/view.html", "credit_log"),
    "explain run --algo grpo": ("explain.html",),
    f"eval run {' '.join(FEW)}": ("evaluation", "evaluation/samples"),
    f"train {' '.join(WORDS)} run --overwrite_output_dir true": ("README.md", "model.safetensors", "credit_run.json"),
}


@pytest.mark.parametrize(("command", "name"), [(command, name) for command, names in WRITES.items() for name in names])
@pytest.mark.parametrize("dangles", [False, True])
def test_nothing_is_written_through_a_link(here, outside, command_said, command, name, dangles):
    path = here / "run" / name
    if name == "credit_log":  # with something to view
        shutil.copytree(path, outside / "folder", dirs_exist_ok=True)
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    is_folder = not path.suffix
    target = outside / ("new" if dangles else "folder" if is_folder else "file")
    path.symlink_to(target)
    before = {file: file.read_bytes() for file in outside.rglob("*") if file.is_file()}
    code, _, error = command_said(*command.split())
    assert {file: file.read_bytes() for file in outside.rglob("*") if file.is_file()} == before
    assert code == 2
    if not (name == "credit_log" and dangles):  # which has no log
        assert f"{name} is a link to {target}" in error, error


# Sizes


@pytest.mark.parametrize("command", ["view run", "compare --runs run"])
@pytest.mark.parametrize("content", ["huge", "deep"])
def test_what_is_read_is_bounded(here, command_said, command, content):
    files = [path for _, path in steps("run")] if command.startswith(("view", "explain")) else []
    for path in files or [Path("run/credit_run.json")]:
        path.write_text('{"a": ' * 100_000)
        if content == "huge":  # without a block on the disk
            os.truncate(path, LARGEST_LINES + 1)
    code, _, error = command_said(*command.split())
    assert code == 2 and (path.name if files else "credit_run.json") in error and len(error.splitlines()) == 1, error


# Recipes

# setting → an algorithm that has it
STRANGER = {**dict.fromkeys(FUNCTION_KNOBS, "grpo"), "reward": "grpo", "module": "grpo"}
STRANGER |= {"selector": "s_trace", "segmentation": "spo_chain", "step_splitter": "vine_ppo", "teacher_prompt": "rlsd"}
COMMANDS = ["plan {}", "plan --config {} --json", "plan {} --help", "train --config {} --help", "recipes"]


@pytest.mark.parametrize("knob", with_slow(STRANGER, "baseline", "selector", "token_mask", "step_splitter"))
@pytest.mark.hostile("recipes of strangers", "survived")
def test_a_recipe_is_read_without_running_its_code(command_said, tmp_path, monkeypatch, knob):
    """Only training runs the functions that a recipe names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("theirs.py").write_text("open('ran', 'w').close()\n\ndef f(*args, **kwargs):\n    raise SystemExit(3)\n")
    setting = {"reward": "reward: ['theirs.py:f']", "module": "credit: theirs.f"}.get(knob, f"{knob}: theirs.py:f")
    Path("theirs.yaml").write_text(f"algo: {STRANGER[knob]}\n{setting}")
    results = [command_said(*words.format("theirs.yaml").split()) for words in COMMANDS]
    assert [code for code, _, _ in results] == [0] * len(COMMANDS), results
    assert "tokens" in results[0][1] and not Path("ran").exists()
    if knob not in ("reward", "module"):  # a configuration in Python looks its functions up
        with pytest.raises(ValueError, match="theirs"):
            parse_arguments(["--config", "theirs.yaml", f"--{knob}", "theirs.py:g"])
        assert Path("ran").exists()
