"""Mistakes on the command line and in YAML files, one line each that names the field; and what cannot be compared."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from comparison_helpers import IDENTITY
from conftest import EXTRACTS
from evaluation_helpers import sample_file, stored
from script_helpers import QUICK, error_of
from viewer_helpers import s_trace

from trl_credit import cli
from trl_credit.demo import demo_model_path
from trl_credit.observe.schema import shard_path, write_shard
from trl_credit.settings.arguments import parse_arguments


pytestmark = pytest.mark.hostile("mistakes on the command line", "refused")
MISTAKES = yaml.safe_load((EXTRACTS / "mistakes.yaml").read_text(encoding="utf-8"))
ROWS = [(first, row if isinstance(row, list) else (row, "")) for first, rows in MISTAKES.items() for row in rows]
TEXTS = {
    "comparison/.compare.lock": "",  # which `compare` takes before it reads its flags
    "text/README.md": "x",
    "text.txt": "",
    "mined.jsonl": '{"prompt": "1+1=", "answer": "2"}\n',
    "sets/gsm8k.jsonl": '\n{"q": "x", "answer": "#### 1"}\n',
    "e.jsonl": '{"problem": "1+1", "answer": "2"}\n{"problem": "1+2", "answer": ""}\n',
    "unknown/config.json": '{"model_type": "foo"}',
    "mute/config.json": Path(demo_model_path(), "config.json").read_text(),
    "theirs/config.json": '{"model_type": "foo", "auto_map": {"AutoConfig": "code.Config"}}',
    "theirs/code.py": "raise SystemExit('ran')\n",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with something for each command to read."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    row = {"prompt": "1+1=", "completion": "ab", "logprobs": [-1, -2], "entropy": [1, 2]}
    (folder / "rollouts.jsonl").write_text("\n".join(json.dumps(row | {"reward": reward}) for reward in (0, 1)))
    for step in (10, 20):
        write_shard(shard_path(folder / "run", step), s_trace(step))
    for name, model in (("a", "a"), ("two", "m"), ("two", "n")):
        stored(folder / name, model, [[True, False]] * 6)
    return folder


@pytest.mark.parametrize(("first", "row"), ROWS, ids=[f"{first} {words}" for first, (words, _) in ROWS])
def test_a_mistake_is_one_line_and_writes_nothing(files, monkeypatch, capsys, first, row):
    monkeypatch.chdir(files)
    before, words = set(files.rglob("*")), shlex.split(f"{first} {row[0]}")
    if words[0] == "train" and "--output_dir" not in row[0]:
        words += ["--output_dir", "text/out"]
    message = error_of(cli.main, words, capsys)
    assert (row[1] or re.findall(r"--(\w+)", row[0].replace("-rate", "_rate"))[-1]) in message
    assert "\n" not in message and set(files.rglob("*")) - {files / "text" / "out"} <= before


# field, or another part of the message → lines of a file
FILES = {
    "max_steps": ["max_steps: ten", "max_steps: 1.5", "max_steps:"],
    "learning_rate": ["learning_rate: [1, 2]"],
    "run_name": ["run_name: {a: 1}", "run_name: 5"],
    "use_vllm": ["use_vllm: maybe"],
    "reward": ["reward: [[accuracy]]"],
    "trace_lambda": ["trace_lamda: 0.5", "trace_lambda: 3"],
    "s_trace": ["algo: strace"],
    "beta": ["beta: 0.1\nbeta: 0.2"],
    "about": ["about: a run"],
    "evaluation_protocol": ["evaluation_protocol: dem"],
    "base": ["base: 5", "base: [none.yaml]", "base: my.yaml"],
    "my.yaml": ["1: 2", "- 1", "beta: [", "x: " + "[" * 5000, "x: " + "y" * 200_000, "b: \x00"],
}


@pytest.mark.parametrize(("name", "text"), [(n, x) for n, texts in FILES.items() for x in texts], ids=lambda x: x[:30])
def test_a_mistake_in_a_file_is_one_line(here, capsys, name, text):
    (here / "my.yaml").write_text(text)
    message = error_of(cli.main, ["train", "--config", "my.yaml", "--output_dir", "out"], capsys)
    assert name in message and "\n" not in message
    assert "my.yaml" in message or name == "base"


def test_all_errors_come_at_once(tmp_path, command_said):
    (tmp_path / "my.yaml").write_text("learning_rate: -1\nmax_prompt_length: 4\n")
    flags = "--no_such_flag 5 --trace_lamda 1 --gamma 3 --lora_r 4 --evaluate_every 5 --loss_type sapo"
    argv = ["--config", str(tmp_path / "my.yaml"), *flags.split()]
    with pytest.raises(ValueError, match="unknown field") as caught:
        parse_arguments(argv)
    first = "unknown unknown unknown learning_rate gamma loss_type='sapo' evaluate_every lora_r=4".split()
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == first
    code, _, errors = command_said("train", "--algo", "strace", *argv)  # names alone, before torch is imported
    names = [line.split()[3] for line in errors.splitlines() if line.startswith("error: unknown ")]
    assert (code, names) == (2, ["'max_prompt_length'", "'strace':", "'--no_such_flag':", "'--trace_lamda':"])


@pytest.mark.hostile("mistakes on the command line", "survived")
def test_powers_of_ten_are_numbers_wherever_they_stand(tmp_path, record_property):
    file = tmp_path / "my.yaml"
    more = 'run_name: "1e5"\ngeneration_kwargs: {min_p: [1e-1], text: "1e5"}\nreward_weights: [-1e-3]'
    file.write_text(f"learning_rate: 1e-5\n{more}")
    args = parse_arguments(["--config", str(file)])[2]
    assert (args.learning_rate, args.run_name, args.reward_weights) == (1e-5, "1e5", [-0.001])
    assert args.generation_kwargs == {"min_p": [0.1], "text": "1e5"}
    assert parse_arguments(["--reward_weights", "1", "-1e-3"])[2].reward_weights == [1.0, -0.001]
    record_property("tried", 5)


REWARDS = {
    "raises": "def raises(completions, **kwargs):\n    yield 1.0\n    {}['a']",
    "leaves": "import sys\ndef leaves(completions, **kwargs):\n    sys.exit(0)",
    "share": "def share(completions, **kwargs):\n    return 0.5",
}


@pytest.mark.hostile("reward functions", "refused")
@pytest.mark.parametrize("name", REWARDS)
def test_what_a_reward_does_in_the_first_batch(here, capsys, name):
    (here / "f.py").write_text(REWARDS[name])
    flags = [*QUICK, "--reward", f"f.py:{name}", "--reward_timeout", "60"]
    message = error_of(cli.main, ["train", *flags, "--disable_tqdm", "true"], capsys)
    assert f"'{name}'" in message and "\n" not in message
    assert not list(here.glob("**/model.safetensors"))


# What `trl-credit compare` and `trl-credit eval A B` cannot compare


@pytest.fixture
def refused(capsys):
    """The line with which `trl-credit compare` stops."""
    return lambda *argv: error_of(cli.main, ["compare", *argv], capsys)


ROW = {"step": 1, "reward": 0.5, "step_time": 1.0}
LOGS = {
    "no identity": ({}, [ROW]),
    "rows that are no mappings": (IDENTITY, [["step_time"]]),
    "a reward of NaN": (IDENTITY, [ROW | {"reward": float("nan")}]),
}


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize("name", LOGS)
def test_the_log_of_a_run_that_is_damaged(refused, name, tmp_path):
    identity, log = LOGS[name]
    run = tmp_path / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    record = {"version": 1, "identity": identity, "lives": [{"from": 0, "id": "a"}]}
    for folder in (run, run / "checkpoint-1"):
        (folder / "credit_run.json").write_text(json.dumps(record))
    state = {"log_history": log, "max_steps": 1, "global_step": 1}
    (run / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    assert str(run) in refused("--runs", run, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out" / "report.md").exists()


LISTS = ["", "[]", '{"version": 9, "primary": "end", "runs": {}}', '{"version": 2, "runs": {}}']


@pytest.mark.hostile("data files", "refused")
@pytest.mark.parametrize("text", LISTS)
def test_a_damaged_list_of_runs(refused, text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    assert "grid.json is damaged" in refused("--algo", "grpo", "--output_dir", tmp_path)
    assert (tmp_path / "grid.json").read_text() == text


SETTINGS = [
    ("push_to_hub: true", "push_to_hub in own.yaml"),
    ("beta: much", "grpo: beta in own.yaml"),
    ("lerning_rate: 1", "grpo: unknown field 'lerning_rate' in own.yaml: did you mean 'learning_rate'?"),
    ("save_strategy: 'no'", "grpo: save_strategy"),
]


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize(("line", "message"), SETTINGS)
def test_files_of_settings(refused, line, message, here):
    (here / "own.yaml").write_text(f"trace_lambda: 0.5\n{line}\n")  # which GRPO does not have
    assert message in refused("--algo", "grpo", "--config", "own.yaml")


# Samples

RIGHT, WRONG = [[True, False]] * 6, [[False, False]] * 6
# changes of the header or of a problem's line → words of the message
CASES = [
    ({"temperature": 0.6}, {}, "temperature is 1.0 and 0.6"),
    ({"reward": "mine.py:f", "reward_source": "mine.py:f 0"}, {}, "reward is 'accuracy' and 'mine.py:f'"),
    ({"set_name": "gsm8k"}, {}, "only b has gsm8k (demo)"),
    ({"ids": list("uvwxyz")}, {}, "no problem id in common"),
    ({"metrics": ["maj@2"]}, {}, "give --metrics pass@1"),
    ({"problems": 7}, {}, "is not finished"),
    ({}, {"reference": {"answer": "3"}}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"prompt": "another"}, "another prompt, answer or column, such as 'p2'"),
    ({}, {"samples": []}, "problem 'p2' has not 2 samples"),
    ({}, {"samples": [{"correct": 1}, {"correct": True}]}, "problem 'p2' has not 2 samples with a verdict"),
    ({}, {"samples": [{}, {"correct": True}]}, "problem 'p2' has not 2 samples with a verdict"),
]


@pytest.mark.hostile("comparisons", "refused")
@pytest.mark.parametrize(("header", "line", "words"), CASES)
def test_samples_that_cannot_be_compared(here, capsys, header, line, words):
    stored("a", "a", RIGHT)
    path = sample_file(stored("b", "b", WRONG, **header))
    lines = path.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), **line})
    path.write_text("\n".join(lines) + "\n")
    before = sorted(Path(".").rglob("*"))
    assert words in error_of(cli.main, ["eval", "a", "b"], capsys)
    assert sorted(Path(".").rglob("*")) == before
