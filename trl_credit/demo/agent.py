"""The embedded task "demo_agent": a calculator with memory, called once for each letter of a problem.

    user        KBE3
    assistant   K calc(op="-", x=2)        tool   1
    assistant   B calc(op="+", x=1)        tool   2
    assistant   E calc(op="-", x=1)        tool   1
    assistant   1

The digit is the first value of the calculator's memory, and all values are modulo 10. A turn names its letter, which
keeps the place. A letter means one operation while the value is even and another while it is odd, see `MEANINGS`. So a
call needs the result of the call before it, and a wrong call spoils the calls that follow. The reward on the answer
does not tell which call was wrong. Credit assignment has to find out.

There are 24 facts (a letter and a parity). The warm start teaches the model a wrong call for 14 of them, which it
prefers to the right one, 0.6 to 0.4.
"""

import copy
import random
from typing import Any, NamedTuple

from datasets import Dataset

from ..support.conversation import response_text


CALLS = 3
LETTERS = "ABCDEFGHIJKL"
_EVEN = "-3 +4 +2 -4 -1 +1 +4 +4 +2 -2 +1 +2"
_ODD = "+4 +1 -1 -1 +4 +4 -2 +1 -4 -1 -2 +1"
SETTINGS = {  # where they differ from those of the other tasks
    "learning_rate": 2e-4,
    "per_device_train_batch_size": 128,
    "max_completion_length": 64,  # tokens of a conversation after its prompt; the usual one has 38
    "max_steps": 80,
}


class Call(NamedTuple):
    """Arguments of one call of the calculator."""

    op: str
    x: int


MEANINGS = {
    (letter, parity): Call(words[i][0], int(words[i][1]))
    for parity, words in enumerate((_EVEN.split(), _ODD.split()))
    for i, letter in enumerate(LETTERS)
}


def right_call(letter: str, value: int) -> Call:
    """The call that a letter means while the calculator shows `value`."""
    return MEANINGS[letter, value % 2]


class Calculator:
    """An environment for TRL's `environment_factory`: a calculator whose memory holds the running value."""

    def __init__(self) -> None:
        self._problem, self._value, self._done = "0", 0, 0

    def reset(self, prompt: list[dict[str, str]], **row: Any) -> None:
        """Starts the problem of a row of `agent_dataset`: the memory holds its digit."""
        self._problem = prompt[-1]["content"]
        self._value, self._done = int(self._problem[-1]), 0

    def calc(self, op: str, x: int) -> str:
        """Changes the value in memory, and shows its last digit.

        Args:
            op: The operation, + or -.
            x: The operand, a digit.

        Returns:
            The new value.
        """
        if op not in ("+", "-"):
            raise ValueError("op is + or -")
        if type(x) is not int or not 0 <= x <= 9:
            raise ValueError("x is a digit")
        self._value = (self._value + (x if op == "+" else -x)) % 10
        self._done += 1
        return str(self._value)

    @property
    def state_key(self) -> tuple[int, int]:
        """The state before the next turn: how many calls were done, and the value in memory."""
        return self._done, self._value

    # `snapshot()` copies the state, and `restore(state)` sets it back. TRL offers methods as tools: these are functions
    snapshot = property(lambda self: lambda: copy.deepcopy(vars(self)))
    restore = property(lambda self: lambda state: vars(self).update(copy.deepcopy(state)))


class StepCalculator(Calculator):
    """A calculator that also scores each call.

    Attributes:
        step_rewards: One number for each call: 1 / number of letters if it is the call that the next letter means at
            the value in memory, else 0. A call that raises scores 0, and its letter stays the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step_rewards: list[float] = []

    def reset(self, prompt: list[dict[str, str]], **row: Any) -> None:
        """Starts the problem of a row, without scores."""
        super().reset(prompt, **row)
        self.step_rewards = []

    def calc(self, op: str, x: int) -> str:
        """Changes the value in memory, and shows its last digit.

        Args:
            op: The operation, + or -.
            x: The operand, a digit.

        Returns:
            The new value.
        """
        letters = self._problem[:-1]
        is_right = self._done < len(letters) and (op, x) == right_call(letters[self._done], self._value)
        self.step_rewards.append(0.0)
        shown = super().calc(op, x)
        self.step_rewards[-1] = is_right / len(letters)
        return shown


def agent_reward(completions: list, answer: list[str], **kwargs: Any) -> list[float]:
    """1 if the last message is the model's, calls no tool, and its text is the right digit, else 0. Takes any text."""
    calls = [isinstance(c, list) and c and c[-1].get("tool_calls") for c in completions]
    texts = ["" if call else response_text(c).strip() for call, c in zip(calls, completions, strict=True)]
    return [float(text == right) for text, right in zip(texts, answer, strict=True)]


def draw_problem(rng: random.Random) -> str:
    """A problem: `CALLS` different letters, and the first value."""
    return f"{''.join(rng.sample(LETTERS, CALLS))}{rng.randrange(10)}"


def right_answer(problem: str) -> str:
    """The digit that the right calls lead to."""
    shown = problem[-1]
    calculator = Calculator()
    calculator.reset([{"role": "user", "content": problem}])
    for letter in problem[:-1]:
        shown = calculator.calc(*right_call(letter, int(shown)))
    return shown


def agent_dataset(n: int = 1024, *, seed: int = 0) -> Dataset:
    """`n` problems, the same for the same seed. Columns: `prompt` (one message of the user) and `answer` (a digit, as a
    string)."""
    rng = random.Random(seed)
    problems = [draw_problem(rng) for _ in range(n)]
    prompts = [[{"role": "user", "content": problem}] for problem in problems]
    return Dataset.from_dict({"prompt": prompts, "answer": [*map(right_answer, problems)]})


def agent_environment(args: Any) -> type[Calculator]:
    """The environment of a run with a configuration: one that scores calls if the run's returns are made of them."""
    return StepCalculator if args.returns == "to_go" else Calculator
