"""Messages and answers that look right to a careless reader."""

import json
from pathlib import Path

import pytest

from trl_credit.data import load_prompts
from trl_credit.demo import agent_reward, demo_reward
from trl_credit.rewards import accuracy_reward, format_reward, knights_and_knaves_reward, reasoning_gym_reward


ANSWERS = "messages and answers"
CASES = Path(__file__).parents[1] / "reading_cases.jsonl"
ASKED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "run", "arguments": {}}}]}


def last(content, role):
    return [ASKED, {"role": role, "content": content}]


@pytest.mark.hostile(ANSWERS, "survived")
@pytest.mark.parametrize("role", ["tool", "user", "system", None])
def test_only_what_the_model_wrote_last_is_its_answer(role):
    """A text cut to nothing leaves the tool's message last."""
    given = {"answer": ["42"], "names": [["Ann"]], "truth": [[True]]}
    for reward, text in (
        (accuracy_reward, "\\boxed{42}"),
        (format_reward, "<think>a</think><answer>42</answer>"),
        (knights_and_knaves_reward, "Ann is a knight."),
        (agent_reward, "42"),
    ):
        assert reward(completions=[last(text, "assistant")], **given) == [1.0]
        assert reward(completions=[last(text, role)], **given) == [0.0]
        assert reward(completions=[[*last(text, "assistant"), {"role": role, "content": "done"}]], **given) == [0.0]


@pytest.mark.hostile(ANSWERS, "survived")
def test_a_tool_cannot_solve_an_embedded_task():
    given = [last("1+1=2", "assistant"), last("1+1=2", "tool"), "1+1=2"]
    assert demo_reward(given, ["2"] * 3) == [1.0, 0.0, 1.0]


@pytest.mark.hostile(ANSWERS, "survived")
def test_a_tool_cannot_solve_a_procedural_task():
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    row = load_prompts("reasoning_gym:chain_sum", config={"size": 1})[0]
    text = f"<answer>{row['answer']}</answer>"
    assert reasoning_gym_reward([last(text, "assistant"), last(text, "tool")], [row["entry"]] * 2) == [1.0, 0.0]


@pytest.mark.hostile(ANSWERS, "survived")
def test_answers_that_look_like_the_gold(record_property):
    with CASES.open(encoding="utf-8") as lines:
        wrong = [case for case in map(json.loads, lines) if not case["expected"]]
    record_property("tried", len(wrong))
    texts, problems = [f"\\boxed{{{case['answer']}}}" for case in wrong], [case.get("problem", "") for case in wrong]
    rewards = accuracy_reward(texts, [case["gold"] for case in wrong], prompts=problems)
    assert [case for case, reward in zip(wrong, rewards, strict=True) if reward] == []
