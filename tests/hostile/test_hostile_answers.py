"""Messages and answers that look right to a careless reader."""

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
