"""The embedded task: a chain of additions and subtractions modulo 10, every step written out.

    prompt      3+2-1-3+1+2-3:
    response    3+2=5;5-1=4;4-3=1;1+1=2;2+2=4;4-3=1

Copying the running result and the next operation is routine; the digit after each "=" is a decision. A wrong digit is
carried on, so the reward on the last digit does not tell which of the six decisions was wrong. Credit assignment has to
find out.

There are 60 facts (a digit, a sign, an operand). The warm start teaches the model a wrong digit for 18 of them, which
it prefers to the right one, 0.6 to 0.4. So greedy decoding fails on most problems, and reinforcement learning has
something to teach.

A longer variant, for a custom checkpoint (`python -m trl_credit.demo.warm_start --countdown 10 --steps 900`), counts
down before each digit: 3+2:9876543210=5. Then one token in 17 is a decision, eleven more are routine, and the effect of
a wrong digit is far away.
"""

import random

from datasets import Dataset


CHARACTERS = "0123456789+-=;:"
N_STEPS = 6
MAX_OPERAND = 3
MISTAUGHT = 18  # of the 60 facts
WRONG_RATE = 0.6
_ROOM = 4  # spare tokens
DEMO_MAX_COMPLETION_LENGTH = 6 * N_STEPS + _ROOM  # a step and its separator are six
DEMO_TASK = "six additions and subtractions modulo 10, worked out step by step; reward 1 if the last digit is right"


def draw_problem(rng: random.Random) -> str:
    """A prompt: a digit, `N_STEPS` signed operands from 1 to `MAX_OPERAND`, and a colon."""
    steps = (f"{rng.choice('+-')}{rng.randint(1, MAX_OPERAND)}" for _ in range(N_STEPS))
    return f"{rng.randrange(10)}{''.join(steps)}:"


def mistaught_facts(*, seed: int = 0) -> dict[str, int]:
    """The facts, such as "3+2", that the warm start teaches wrongly, and the wrong digit of each."""
    rng = random.Random(seed)
    facts = [f"{digit}{sign}{operand}" for digit in range(10) for sign in "+-" for operand in range(1, MAX_OPERAND + 1)]
    return {fact: (_result(fact) + rng.randint(1, 9)) % 10 for fact in rng.sample(facts, MISTAUGHT)}


def longest(countdown: int) -> int:
    """Maximum number of tokens of a response that counts down from `countdown` − 1 in each step; 0: embedded task."""
    return DEMO_MAX_COMPLETION_LENGTH + N_STEPS * len(_routine(countdown))


def work_out(
    prompt: str, *, rng: random.Random | None = None, mistaught: dict[str, int] | None = None, countdown: int = 0
) -> str:
    """The worked solution of `prompt`; the facts in `mistaught` are wrong with probability `WRONG_RATE`.

    A wrong result is carried on, as a model would carry it on. With a `countdown`, at most 10, each step counts down
    before its digit.
    """
    running, steps = int(prompt[0]), []
    for sign, operand in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        fact = f"{running}{sign}{operand}"
        running = _result(fact)
        if mistaught is not None and fact in mistaught and rng.random() < WRONG_RATE:
            running = mistaught[fact]
        steps.append(f"{fact}{_routine(countdown)}={running}")
    return ";".join(steps)


def _routine(countdown: int) -> str:
    """ ":9876543210": every token follows from the previous one."""
    return ":" * bool(countdown) + "".join(str(digit) for digit in reversed(range(countdown)))


def _result(fact: str) -> int:
    return (int(fact[0]) + int(fact[1:])) % 10


def demo_dataset(n: int = 1024, *, seed: int = 0) -> Dataset:
    """`n` problems, the same for the same seed. Columns: `prompt` (string) and `answer` (a digit, as a string)."""
    rng = random.Random(seed)
    prompts = [draw_problem(rng) for _ in range(n)]
    return Dataset.from_dict({"prompt": prompts, "answer": [work_out(prompt)[-1] for prompt in prompts]})


def split_steps(text: str) -> list[int]:
    """A step splitter: offsets of the steps of a worked solution, and its length. Takes any text."""
    return sorted({0, len(text), *(i + 1 for i, c in enumerate(text) if c == ";")})


def demo_reward(completions: list[str], answer: list[str], **kwargs) -> list[float]:
    """1 if the completion ends in `=` and the right digit, else 0. Takes any text."""
    return [float(text[-2:] == f"={right}") for text, right in zip(completions, answer, strict=True)]
