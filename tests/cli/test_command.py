"""The command `trl-credit`: its subcommands, recipes by name, the launcher, and that it does what the scripts do."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from scripts import ROOT, load_script

import trl_credit
from trl_credit import cli as commands
from trl_credit.cli.launch import take_launcher
from trl_credit.lab.evaluation import PROTOCOLS
from trl_credit.settings.arguments import parse_arguments
from trl_credit.settings.recipes import all_recipes
from trl_credit.support.packaged import accelerate_config, packaged_folder


README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [(ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("start", "compose")]
QUICK = ["--max_steps", "2", "--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1"]
VARIANT = "s_trace/qwen3_4b_random_mask"


@pytest.fixture
def no_launcher(monkeypatch):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


def test_help_version_pages_and_recipes_are_there_at_once():
    lines = [["--help"], [], ["--version"], ["recipes", "gspo", "4b"], ["recipes", "show", VARIANT, "--resolved"]]
    lines += [["help"], ["help", "hub"], ["example"]]
    code = f"import sys; from trl_credit.cli import main; codes = [main(argv) for argv in {lines}]; "
    code += "print(codes, {'torch', 'trl', 'transformers', 'accelerate', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 0, 0, 0] set()"
    assert done.stdout.count("usage: trl-credit COMMAND") == 2 and f"trl-credit {trl_credit.__version__}" in done.stdout


# Recipes


def test_recipes_are_listed_searched_and_shown(command_said):
    _, listed, _ = command_said("recipes")
    assert len([line for line in listed.splitlines() if line[:1].strip()]) >= len(all_recipes())
    code, matching, _ = command_said("recipes", "GSPO", "4b")
    names = [line.split()[0] for line in matching.splitlines() if line[:1].strip()]
    assert code == 0
    of_ha_dw = ["ha_dw/qwen3_4b_base_gspo", "ha_dw/qwen3_4b_base_gspo_ha_dw", "ha_dw/released_code_gspo"]
    assert names == [*of_ha_dw, "s_trace/qwen3_4b_gspo"]
    _, raw, _ = command_said("recipes", "show", "s_trace/qwen3_4b_s_trace")
    assert raw == (packaged_folder("recipes") / "s_trace" / "qwen3_4b_s_trace.yaml").read_text(encoding="utf-8")
    _, path, _ = command_said("recipes", "path", "sft/grpo_lambda_7b")
    assert yaml.safe_load(Path(path.strip()).read_text())["max_length"]


def test_a_resolved_recipe_says_what_its_files_say(command_said, tmp_path):
    for name in ("s_trace/qwen3_4b_s_trace", VARIANT, "spo/r1_distill_math_tree_4k"):
        _, resolved, _ = command_said("recipes", "show", name, "--resolved")
        (tmp_path / "one.yaml").write_text(resolved, encoding="utf-8")
        one, other = parse_arguments(["--config", str(tmp_path / "one.yaml")]), parse_arguments(["--config", name])
        assert one.args.to_dict() == other.args.to_dict() and one[0] == other[0] and one[1] == other[1]
    assert "base" not in yaml.safe_load(resolved)


# Training


def trained(folder: Path) -> tuple[list[dict], str, dict]:
    """What a run left: its logs without times, its card without the command and versions, its recipe."""
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    logs = [{k: v for k, v in row.items() if "time" not in k and "second" not in k} for row in state["log_history"]]
    card = (folder / "README.md").read_text(encoding="utf-8")
    card = re.sub(r"## Command\n.*?\n## ", "## ", card, flags=re.DOTALL)
    return logs, card, yaml.safe_load((folder / "recipe.yaml").read_text())


@pytest.mark.slow
def test_script_and_command_do_the_same(tmp_path, monkeypatch):
    results = []
    for name in ("script", "command"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        argv = [*QUICK, "--evaluation_protocol", "demo_greedy", "--output_dir", "out", "--save_steps", "2"]
        if name == "script":
            load_script("examples/train.py").main(argv)
        else:
            assert commands.main(["train", *argv]) == 0
        folder = tmp_path / name / "out"
        results.append((*trained(folder), sorted(path.relative_to(folder) for path in folder.rglob("*"))))
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "\naccelerate launch examples/train.py --" in card or "\ntrl-credit train --" in card
        assert "## Evaluation" in card and not re.search(r"\bNone\b", card)
    assert results[0] == results[1]


# Several processes


FREE = ["--main_process_port", "0"]


@pytest.mark.parametrize(
    ("text", "flags", "free"),
    [
        ("main_process_port: null", [], True),
        ("num_machines: 2", ["--num_machines", "1"], True),
        ("main_process_port: 29501", [], False),
        ("", ["--num_machines=2"], False),
    ],
)
def test_jobs_on_one_machine_take_free_ports(tmp_path, no_launcher, text, flags, free):
    (tmp_path / "mine.yaml").write_text(text)
    launcher_flags, typed, _ = take_launcher(["--accelerate_config", str(tmp_path / "mine.yaml"), *flags])
    assert (launcher_flags[-2:] == FREE) == free and "0" not in typed


def test_the_launcher_is_given_a_packaged_configuration_or_a_file(tmp_path, monkeypatch, no_launcher):
    assert accelerate_config("zero3") == packaged_folder("accelerate_configs") / "zero3.yaml"
    argv = ["--algo", "grpo", "--accelerate_config", "zero3", "--num_processes=4", "--config", "a", "b"]
    flags, typed, rest = take_launcher(argv)
    assert flags == ["--config_file", str(accelerate_config("zero3")), "--num_processes", "4", *FREE]
    assert typed == ["--accelerate_config", "zero3", "--num_processes", "4"]
    assert rest == ["--algo", "grpo", "--config", "a", "b"]
    mine = tmp_path / "mine.yaml"
    mine.touch()
    assert take_launcher(["--accelerate_config", str(mine)])[0][1] == str(mine)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ValueError, match="a launcher has started this one: leave out one"):
        take_launcher(argv)


ONE_PROCESS = """\
compute_environment: LOCAL_MACHINE
distributed_type: "NO"
mixed_precision: "no"
num_machines: 1
num_processes: 1
machine_rank: 0
main_training_function: main
use_cpu: true
"""


def start(words: list[str], cwd: Path) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with open(cwd / "log", "wb") as log:
        own = {"cwd": cwd, "env": env, "start_new_session": True}
        return subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, **own)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "number"), [("one.yaml", signal.SIGTERM), ("cpu_2proc", signal.SIGINT)])
def test_a_launcher_passes_signals_on_and_returns_the_exit_code(tmp_path, config, number):
    (tmp_path / "one.yaml").write_text(ONE_PROCESS)
    flags = ["--accelerate_config", config, "--save_steps", "2", "--logging_steps", "1"]
    process = start(["-m", "trl_credit", "train", *flags, "--max_steps", "5000"], tmp_path)
    log = tmp_path / "log"
    deadline = time.monotonic() + 180
    while "step     3" not in log.read_text() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert process.wait(timeout=90) == 128 + number, log.read_text()
    text = log.read_text()
    assert "Traceback" not in text and "the last checkpoint is runs/s_trace/checkpoint-" in text
    assert f"go on with: trl-credit train {' '.join(flags)} --max_steps 5000 --resume_from_checkpoint true" in text
    assert (tmp_path / "runs" / "s_trace" / "README.md").exists()
    with pytest.raises(ProcessLookupError):  # no process is left behind
        os.killpg(process.pid, 0)


# Package index


def test_links_of_the_readme_lead_somewhere_on_a_package_index():
    readme = load_script("setup.py").readme
    text = "[a](https://x.y/z) [b](docs/data.md) ![p](docs/p.png) [c](#d)"
    assert readme(text, None) == "[a](https://x.y/z) b  [c](#d)"
    there = "[a](https://x.y/z) [b](https://h/r/blob/main/docs/data.md) ![p](https://h/r/raw/main/docs/p.png) [c](#d)"
    assert readme(text, "https://h/r/") == there
    links = re.findall(r"\]\(([^)\s]+)\)", readme(README, None))
    assert links and all(re.match(r"https://|#", link) for link in links)


def readme_commands(part: str) -> list[list[str]]:
    text = "\n".join([README, *PAGES]).replace("\\\n", " ")
    blocks = "\n".join([*re.findall(r"```bash\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)])
    blocks = re.sub(r" +#.*$", "", blocks, flags=re.MULTILINE)
    lines = re.findall(rf"trl-credit {part}( [^\n&|#]*)?$", blocks, re.MULTILINE)
    return [words for line in lines if "…" not in line for words in [shlex.split(line)]]


def test_the_commands_of_the_readme_and_of_the_first_pages_are_right(here):
    """The files that they name are empty, and the README's function."""
    (function,) = re.findall(r"```python\n([^`]*\ndef [^`]*)```", README)
    (here / "mine.py").write_text(function.partition("\nargs = ")[0])
    for name in ("a.yaml", "b.yaml"):
        (here / name).write_text("max_steps: 1\n")
    trains = readme_commands("train")
    assert len(trains) >= 7
    for words in trains:
        *_, rest = take_launcher(words)
        parse_arguments(rest, protocols=PROTOCOLS)
    for words in readme_commands("recipes"):
        assert words[:1] != ["show"] or words[1] in all_recipes()
