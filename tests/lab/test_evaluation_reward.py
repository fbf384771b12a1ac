"""Verdicts: a custom reward on a file of problems, permissive and strict answers, roles of knights and knaves."""

import json
from pathlib import Path

import pytest
from evaluation_helpers import sample_file

from trl_credit.lab.evaluation.judging import judge


FLAGS = "--protocol custom --samples 2 --temperature 1 --max_new_tokens 6 --output_dir out --quiet".split()
REWARD = """\
import os
def right(prompts, completions, unit, **kwargs):
    assert all(p.startswith("1+") for p in prompts) and set(unit) == {"m", "s"} and set(kwargs) == {"tests"}
    return [float(u == os.environ["UNIT"]) for u in unit]
async def slow(completions, **kwargs):
    return [True] * len(completions)
def half(completions, **kwargs):
    return [0.5] * len(completions)
def ids(completions, completion_ids, **kwargs):
    return [1.0] * len(completions)
def column(completions, length, **kwargs):
    return [1.0] * len(completions)
def chat(completions, **kwargs):
    assert all(message["role"] == "assistant" for (message,) in completions)
    return [message["content"] == "2" for (message,) in completions]
"""


@pytest.fixture
def call(here, monkeypatch, command_said):
    monkeypatch.setenv("UNIT", "m")
    Path("mine.py").write_text(REWARD)
    rows = [{"prompt": f"1+{i}=", "unit": "ms"[i % 2], "tests": [{"in": i}]} for i in range(4)]
    Path("mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return lambda *words: command_said("eval", *FLAGS, *words)


def score() -> float:
    (row,) = json.loads(Path("out/evaluation.json").read_text())["rows"]
    return row["metrics"]["pass@1"]["value"]


def test_a_custom_reward_judges_a_custom_file(call):
    code, out, _ = call("--reward", "mine.py:right", "--sets", "mine.jsonl")
    assert code == 0 and "mine pass@1" in out and score() == 0.5
    header = json.loads(sample_file("out").read_text().splitlines()[0])
    assert header["reward"] == "mine.py:right" and header["reward_source"].startswith("mine.py:right ")
    code, _, error = call("--reward", "mine.py:slow", "--sets", "mine.jsonl")
    assert code == 2 and "holds samples with reward_source 'mine.py:right " in error and "--rescore --reward" in error
    assert call("--reward", "mine.py:slow", "--rescore")[0] == 0 and score() == 1.0  # a coroutine
    Path("mine.py").write_text(REWARD.replace("[True]", "[False]"))
    assert call("--rescore", "--trust_run")[0] == 0 and score() == 0.0  # by the present file


@pytest.mark.parametrize(("name", "words"), [("half", "gave 0.5"), ("ids", "'completion_ids'"), ("column", "'length'")])
def test_an_unusable_reward_is_refused_in_one_line(call, name, words):
    code, _, error = call("--reward", f"mine.py:{name}", "--sets", "mine.jsonl")
    assert code == 2 and words in error.strip().splitlines()[-1] and "Nothing was trained" not in error
    assert not Path("out/evaluation.md").exists()


def test_verdicts_of_messages_roles_and_answers(call):
    def verdicts(reward, texts, references, problems=("",) * 4):
        pairs = list(zip(texts, references, problems, strict=False))
        lines = [{"reference": gold, "problem": p, "samples": [{"text": text}]} for text, gold, p in pairs]
        judge(reward, lines)
        return [line["samples"][0] for line in lines]

    messages = [{"prompt": [{"role": "user", "content": "1+1="}]}] * 2
    assert [verdict["correct"] for verdict in verdicts("mine.py:chat", ["2", "3"], messages)] == [True, False]
    reference = {"answer": "", "names": ["Zoey", "Ethan"], "truth": [True, False]}
    texts = [
        "<answer>(1) Zoey is a knight (2) Ethan is a knave</answer>",
        "<answer>(1) Zoey is a knave (2) Ethan is a knave</answer>",
        "<answer>Ethan is a knave, Zoey is a knave</answer>",
        "no idea",
    ]
    right, *wrong = verdicts("knights_and_knaves", texts, [reference] * 4)
    assert right["correct"] and not any(verdict["correct"] for verdict in wrong)
    assert wrong[0]["answer"] == wrong[1]["answer"] is not None and wrong[2]["answer"] is None
    problems = ["Compute $17\\cdot 23$.", "Compute $17\\cdot 23$.", "Expand $(x+1)^2$.", "Expand $(x+1)^2$."]
    texts = ["\\boxed{391}", "\\boxed{23*17}", "\\boxed{(1+x)^2}", "\\boxed{2x+1+x^2}"]
    references = [{"answer": answer} for answer in ("391", "391", "x^2+2x+1", "x^2+2x+1")]
    read = verdicts("accuracy", texts, references, problems)
    assert [verdict["correct"] for verdict in read] == [True] * 4
    assert [verdict["correct_strict"] for verdict in read] == [True, False, False, True]
