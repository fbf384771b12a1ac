"""Messages and answers that look right to a careless reader."""

import json
from pathlib import Path

import pytest

from trl_credit.data import load_prompts
from trl_credit.demo import agent_reward, demo_reward
from trl_credit.rewards import accuracy_reward, format_reward, knights_and_knaves_reward, reasoning_gym_reward


ASKED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "run", "arguments": {}}}]}
RIGHT = {
    accuracy_reward: ("\\boxed{42}", {"answer": ["42"]}),
    format_reward: ("<think>a</think><answer>42</answer>", {}),
    knights_and_knaves_reward: ("Ann is a knight.", {"names": [["Ann"]], "truth": [[True]]}),
    agent_reward: ("42", {"answer": ["42"]}),
    demo_reward: ("1+1=2", {"answer": ["2"]}),
}


@pytest.mark.hostile("messages and answers", "survived")
@pytest.mark.parametrize("role", ["tool", "user", "system", None])
def test_only_the_last_words_of_the_model_are_its_answer(role):
    """A text cut to nothing leaves the tool's message last."""
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    row = load_prompts("reasoning_gym:chain_sum", config={"size": 1})[0]
    of_gym = {reasoning_gym_reward: (f"<answer>{row['answer']}</answer>", {"entry": [row["entry"]]})}
    for reward, (text, columns) in (RIGHT | of_gym).items():
        answer, other = {"role": "assistant", "content": text}, {"role": role, "content": text}
        for messages, expected in (([ASKED, answer], 1.0), ([ASKED, other], 0.0), ([ASKED, answer, other], 0.0)):
            assert reward(completions=[messages], **columns) == [expected]


@pytest.mark.hostile("messages and answers", "survived")
def test_answers_that_look_like_the_gold(record_property):
    lines = (Path(__file__).parents[1] / "reading_cases.jsonl").read_text(encoding="utf-8").splitlines()
    wrong = [case for case in map(json.loads, lines) if not case["expected"]]
    record_property("tried", len(wrong))
    texts, problems = [f"\\boxed{{{case['answer']}}}" for case in wrong], [case.get("problem", "") for case in wrong]
    rewards = accuracy_reward(texts, [case["gold"] for case in wrong], prompts=problems)
    assert [case for case, reward in zip(wrong, rewards, strict=True) if reward] == []
