"""The embedded task: a chain of additions and subtractions modulo 10, every step written out.

    prompt      3+2-1-3+1+2-3:
    response    3+2=5;5-1=4;4-3=1;1+1=2;2+2=4;4-3=1

Copying the running result and the next operation is routine; the digit after each "=" is a decision. A wrong digit is
carried on, so the reward on the last digit does not tell which of the six decisions was wrong. Credit assignment has to
find out.

There are 60 facts (a digit, a sign, an operand). The warm start teaches the model a wrong digit for 18 of them, which
it prefers to the right one, 0.6 to 0.4. So greedy decoding fails on most problems, and reinforcement learning has
something to teach.

The task "demo_hum" has four steps and hums: 16 filler tokens before each digit and after the last one.

    prompt      3+2-1-3+1:
    response    3+2mmmmmmmmmmmmmmmm=5;5-1mmmmmnmmmmmmmmmm=4;4-3mmmmmmmmmmmmmmmm=1;1+1mmmmmmmmmmmmummm=2mmmmmmmmmmmmmmmm

The model hums another letter than "m" with probability 0.05. No reward depends on it, so what filler adds to the
gradient is noise: 86 % of E|score|², Σ (1 − Σp²) over tokens, at the start. 30 of the 60 facts are mis-taught.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..support.conversation import response_text
from .agent import CALLS, SETTINGS, agent_dataset, agent_environment


MAX_OPERAND = 3
HUM = "m"
OTHER_HUMS = "nhu"


@dataclass(frozen=True)
class DemoTask:
    """An embedded task.

    Attributes:
        name: What `--dataset_name` and `--model_name_or_path` call it, and its checkpoint.
        steps: Additions and subtractions of a problem.
        hum: Filler tokens before each digit and after the last.
        description: One line for the console.
        reward: The name of its reward function.
        own_settings: Settings of a run that are not those of the other tasks.
        dataset: Makes the problems from their number and a seed; `None` for chains of additions.
        environment: Chooses TRL's `environment_factory` for a configuration; `None` for a task without tools.
    """

    name: str
    steps: int
    hum: int
    description: str
    reward: str = "demo"
    own_settings: dict[str, Any] = field(default_factory=dict, hash=False)
    dataset: Callable[..., Dataset] | None = None
    environment: Callable[[Any], type] | None = None

    @property
    def max_completion_length(self) -> int:
        """Tokens of a response, the end and a few to spare."""
        return self.steps * (6 + self.hum) + self.hum + 4

    @property
    def settings(self) -> dict[str, Any]:
        """Every algorithm learns the task with these within minutes on two cores, see `benchmarks/learning.py`."""
        return {
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "per_device_train_batch_size": 64,
            "num_generations": 8,
            "max_completion_length": self.max_completion_length,
            "max_steps": 200,
            "logging_steps": 5,
            "log_credit": 20,  # for `trl-credit view` and `show_credit`
            **self.own_settings,
        }

    @property
    def model_path(self) -> str:
        """Folder of the warm-started checkpoint and its tokenizer. `benchmarks/warm_start.py` makes it."""
        return str(Path(__file__).parent / ("model" if self.name == "demo" else self.name))


DEMO = DemoTask("demo", 6, 0, "six additions and subtractions modulo 10, worked out step by step")
_BETWEEN = "four additions and subtractions modulo 10, with 16 tokens of filler between"
_CALLED = "three calls of a calculator, each of which needs the result before"
_HUM = DemoTask("demo_hum", 4, 16, _BETWEEN)
_AGENT = DemoTask("demo_agent", CALLS, 0, _CALLED, "demo_agent", SETTINGS, agent_dataset, agent_environment)
TASKS = {task.name: task for task in (DEMO, _HUM, _AGENT)}


def draw_problem(rng: random.Random, *, steps: int = DEMO.steps) -> str:
    """A prompt: a digit, `steps` signed operands from 1 to `MAX_OPERAND`, and a colon."""
    operands = (f"{rng.choice('+-')}{rng.randint(1, MAX_OPERAND)}" for _ in range(steps))
    return f"{rng.randrange(10)}{''.join(operands)}:"


def demo_dataset(n: int = 1024, *, seed: int = 0, task: DemoTask = DEMO) -> Dataset:
    """`n` problems, the same for the same seed. Columns: `prompt` and `answer` (a digit, as a string)."""
    if task.dataset is not None:
        return task.dataset(n, seed=seed)
    rng = random.Random(seed)
    prompts = [draw_problem(rng, steps=task.steps) for _ in range(n)]
    answers = [str(sum(map(int, re.findall(r"[+-]?\d", prompt))) % 10) for prompt in prompts]
    return Dataset.from_dict({"prompt": prompts, "answer": answers})


def split_steps(text: str) -> list[int]:
    """A step splitter: offsets of the steps of a worked solution, and its length. Takes any text."""
    return sorted({0, len(text), *(i + 1 for i, c in enumerate(text) if c == ";")})


def demo_reward(completions: list, answer: list[str], **kwargs) -> list[float]:
    """1 if the completion ends in `=` and the right digit, and perhaps in filler, else 0. Takes any text."""
    ends = [without_filler(response_text(completion))[-2:] for completion in completions]
    return [float(end == f"={right}") for end, right in zip(ends, answer, strict=True)]


def without_filler(text: str) -> str:
    """Text without the filler at its end."""
    return text.rstrip(HUM + OTHER_HUMS)
