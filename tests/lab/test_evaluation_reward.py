"""Evaluation of a custom task: a file of problems and a custom reward function."""

import json

import pytest
from evaluation_helpers import sample_file

from trl_credit import cli as commands
from trl_credit.lab.evaluation.judging import judge


FLAGS = "--protocol custom --samples 2 --temperature 1 --max_new_tokens 6 --output_dir out --quiet".split()
REWARD = """\
import os
def right(prompts, completions, unit, **kwargs):
    assert all(p.startswith("1+") for p in prompts) and set(unit) == {"m", "s"} and set(kwargs) == {"tests"}
    return [float(u == os.environ["UNIT"]) for u in unit]
def other(completions, **kwargs):
    return [1.0] * len(completions)
async def slow(completions, **kwargs):
    return [True] * len(completions)
def half(completions, **kwargs):
    return [0.5] * len(completions)
def short(completions, **kwargs):
    return [1.0]
def nothing(completions, **kwargs):
    return [None] * len(completions)
def raises(completions, **kwargs):
    return [1 / 0 for _ in completions]
def ids(completions, completion_ids, **kwargs):
    return [1.0] * len(completions)
def column(completions, length, **kwargs):
    return [1.0] * len(completions)
def chat(completions, **kwargs):
    assert all(message["role"] == "assistant" for (message,) in completions)
    return [message["content"] == "2" for (message,) in completions]
"""


@pytest.fixture
def call(tmp_path, monkeypatch, command_said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIT", "m")
    (tmp_path / "mine.py").write_text(REWARD)
    rows = [{"prompt": f"1+{i}=", "unit": "ms"[i % 2], "tests": [{"in": i}]} for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(reward: str, *argv: str) -> tuple[int, str]:
        code, out, error = command_said("eval", "--reward", reward, *FLAGS, *argv)
        return code, out if code == 0 else error.strip().splitlines()[-1]

    return run


def scores(tmp_path) -> dict[str, float]:
    (row,) = json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]
    return {metric: numbers["value"] for metric, numbers in row["metrics"].items()}


def test_a_custom_reward_judges_a_custom_file(call, tmp_path):
    code, out = call("mine.py:right", "--sets", "mine.jsonl")
    assert code == 0 and "mine pass@1" in out and scores(tmp_path)["pass@1"] == 0.5
    header = json.loads(sample_file(tmp_path / "out").read_text().splitlines()[0])
    assert header["reward"] == "mine.py:right" and header["reward_source"].startswith("mine.py:right ")


def test_another_reward_judges_the_same_samples_only_when_asked(call, tmp_path):
    call("mine.py:right", "--sets", "mine.jsonl")
    code, error = call("mine.py:other", "--sets", "mine.jsonl")
    assert code == 2 and "holds samples with reward_source 'mine.py:right " in error
    assert error.endswith("or judge them again with --rescore --reward")
    assert call("mine.py:other", "--rescore")[0] == 0 and scores(tmp_path)["pass@1"] == 1.0
    assert call("mine.py:slow", "--rescore")[0] == 0  # a coroutine
    (tmp_path / "mine.py").write_text(REWARD.replace("[True]", "[False]"))
    assert commands.main(["eval", "--rescore", "--trust_run", "--output_dir", "out"]) == 0  # by the present file
    assert scores(tmp_path)["pass@1"] == 0.0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("mine.py:half", "the reward 'mine.py:half' gave 0.5, but an evaluation needs 0 or 1"),
        ("mine.py:nothing", "gave None, but an evaluation needs 0 or 1"),
        ("mine.py:short", "reward function 'short' returned 1 rewards for 8 responses"),
        ("mine.py:raises", "reward function 'raises' (on 8 responses"),
        ("mine.py:ids", "needs 'completion_ids', which exists in training only"),
        (
            "mine.py:column",
            "reward function 'column' cannot be called: missing a required argument: 'length', and the set has",
        ),
        ("mine.py:no_such", "'no_such' is not a function there"),
        ("no.py:f", "there is no file 'no.py'"),
        ("acuracy", "unknown reward 'acuracy'"),
    ],
)
def test_an_unusable_reward_is_refused_in_one_line(call, tmp_path, reward, message):
    code, error = call(reward, "--sets", "mine.jsonl")
    assert code == 2 and error.startswith("error: ") and message in error and "Nothing was trained" not in error
    assert not (tmp_path / "out" / "evaluation.md").exists()


def test_samples_of_a_sets_own_reward_hold_no_prompts(call):
    assert commands.main(["eval", "--max_problems", "2", "--output_dir", "out", "--quiet"]) == 0
    code, error = call("mine.py:other", "--rescore")
    assert code == 2 and "these samples hold no prompts" in error and "--overwrite" in error


def test_messages_are_judged_as_messages(call):
    prompt = [{"role": "user", "content": "1+1="}]
    verdicts = judge("mine.py:chat", ["2", "3"], [{"prompt": prompt}] * 2)
    assert verdicts == [{"answer": None, "correct": True}, {"answer": None, "correct": False}]
