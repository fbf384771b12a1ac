"""Trains a tiny agent with an environment of your own, in one file from the environment to the saved model.

    python examples/train_agent.py                             # two minutes on two CPU cores, no download

The model calls a calculator once for each letter of a problem. What a letter means depends on the value that the
calculator showed last, so one wrong call spoils the rest, and the reward on the answer does not say which call it was.
S-trace finds the tokens that decided. To train on your own task, change the three parts below: the data, the
environment and the reward.
"""

import argparse
import random

from datasets import Dataset

from trl_credit import STraceConfig, STraceTrainer
from trl_credit.demo import TASKS, demo_settings
from trl_credit.demo.agent import LETTERS, right_call


TASK = TASKS["demo_agent"]  # its model knows how to call tools, and half of what the letters mean


# 1. The data: a prompt is a conversation. All columns of a row reach `reset` of the environment and the rewards.
def make_rows(n: int, seed: int) -> Dataset:
    rng, rows = random.Random(seed), []
    for _ in range(n):
        letters, start = rng.sample(LETTERS, 3), rng.randrange(10)
        value = start
        for letter in letters:
            op, x = right_call(letter, value)
            value = (value + x if op == "+" else value - x) % 10
        problem = [{"role": "user", "content": f"{''.join(letters)}{start}"}]
        rows.append({"prompt": problem, "letters": "".join(letters), "start": start, "answer": str(value)})
    return Dataset.from_list(rows)


# 2. The environment: TRL makes one for each response, calls `reset` with its row, and offers the other public methods
# to the model as tools. A tool needs type hints and an entry in "Args" for each parameter.
class ScoredCalculator:
    def __init__(self) -> None:
        self.step_rewards: list[float] = []  # one number for each call

    def reset(self, letters: str, start: int, **row) -> None:
        self._left, self._value, self._share = list(letters), start, 1 / len(letters)
        self.step_rewards = []

    def calc(self, op: str, x: int) -> str:
        """Changes the value in memory, and shows its last digit.

        Args:
            op: The operation, + or -.
            x: The operand, a digit.

        Returns:
            The new value.
        """
        self.step_rewards.append(0.0)
        if op not in ("+", "-") or type(x) is not int or not 0 <= x <= 9:
            raise ValueError("op is + or -, x a digit")  # the model reads the message
        if self._left and (op, x) == right_call(self._left.pop(0), self._value):
            self.step_rewards[-1] = self._share
        self._value = (self._value + x if op == "+" else self._value - x) % 10
        return str(self._value)


# 3. The reward. Only what the model wrote counts: the last message may be a tool's, if the response was cut off.
def right_answer(completions: list, answer: list[str], **kwargs) -> list[float]:
    last = [messages[-1] for messages in completions]
    return [float(m["role"] == "assistant" and m["content"] == right) for m, right in zip(last, answer, strict=True)]


def main() -> None:
    args = STraceConfig(
        output_dir="runs/agent",
        report_to="none",
        returns="to_go",  # credit each turn with the rewards of its own call and of later ones, from `step_rewards`
        **demo_settings(STraceConfig, task=TASK),
    )
    trainer = STraceTrainer(
        model=TASK.model_path,  # or "Qwen/Qwen3-1.7B"
        reward_funcs=right_answer,
        args=args,
        train_dataset=make_rows(1024, seed=0),
        environment_factory=ScoredCalculator,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
