"""Procedural tasks of reasoning-gym: seeded rows, and the task's own score as reward."""

import sys

import pytest

from trl_credit.data import load_prompts
from trl_credit.rewards import reasoning_gym, reasoning_gym_reward


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")


def test_procedural_tasks_are_seeded_and_score_their_own_answers(gym):
    data = load_prompts("reasoning_gym:chain_sum", config="{size: 20, min_terms: 3}", seed=5)
    again = load_prompts("reasoning_gym:chain_sum", config={"min_terms": 3, "size": 20, "seed": 5})
    other = load_prompts("reasoning_gym:chain_sum", config={"min_terms": 3, "size": 20}, seed=6)
    assert data["prompt"] == again["prompt"] != other["prompt"] and len(data) == 20
    assert {"prompt", "answer", "id", "entry"} <= set(data.column_names)
    for prompt, answer in zip(data["problem"], data["answer"], strict=True):
        assert eval(prompt.split(":")[1].strip(" =")) == int(answer)
    boxed = [f"<think>\\boxed{{0}}</think> so \\boxed{{{answer}}}" for answer in data["answer"]]
    tagged = [[{"role": "assistant", "content": f"<answer>{answer}</answer>"}] for answer in data["answer"]]
    wrong = [f"\\boxed{{{int(answer) + 1}}}" for answer in data["answer"]]
    for completions, score in ((boxed, 1.0), (tagged, 1.0), (wrong, 0.0)):
        assert reasoning_gym_reward(completions=completions, entry=data["entry"], prompts=None) == [score] * 20


def test_any_response_to_a_procedural_task_has_a_score(gym):
    responses = ["", "7", "\\boxed{}", "<answer>", "<answer></answer>", "<answer>\x00<b></answer>", "<answer>" * 10**5]
    responses += [f"<answer>{'9' * 10**6}</answer>", "<answer>[[[</answer>", "<think><answer>1</answer>", "\\boxed{(}"]
    for task in ("chain_sum", "countdown", "sudoku", "polynomial_equations", "rubiks_cube", "knights_knaves"):
        entry = load_prompts(f"reasoning_gym:{task}", config={"size": 1})[0]["entry"]
        scores = reasoning_gym_reward([*responses, [], [{"role": "assistant"}]], [entry] * (len(responses) + 2))
        assert all(0 <= score < 1 for score in scores), task


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("reasoning_gym:chain_sums", None, "no task 'chain_sums': choose one of"),
        ("reasoning_gym:chain_sum", "{terms: 3}", "--dataset_config does not fit the task 'chain_sum'"),
        ("reasoning_gym:chain_sum", "{min_terms: -1}", "--dataset_config does not fit the task 'chain_sum'"),
        ("reasoning_gym:chain_sum", "main", "must be like '{size: 1000}'"),
        ("reasoning_gym:chain_sum", "{size", "must be like '{size: 1000}'"),
    ],
)
def test_wrong_tasks(gym, name, config, message):
    with pytest.raises(ValueError, match=message):
        load_prompts(name, config=config)


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    reasoning_gym._task.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'trl-credit\[reasoning-gym\]'"):
        load_prompts("reasoning_gym:chain_sum")
