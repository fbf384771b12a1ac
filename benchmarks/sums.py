"""Sums of two numbers for a language model, and of three or four in words: prompts, and the rewards."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

from trl_credit import Credit, CreditConfig, Tokens, assign_credit


def first_number(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """1 if the first number of a completion is the answer, else 0."""
    found = (re.search(r"\d+", text) for text in completions)
    return [float(match is not None and match[0] == right) for match, right in zip(found, answer, strict=True)]


def after_so(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """1 if the number after the first "So" is the answer, else 0."""
    found = (re.search(r"So (\d+)", text) for text in completions)
    return [float(match is not None and match[1] == right) for match, right in zip(found, answer, strict=True)]


def write_sums(path: Path, *, count: int = 2000) -> None:
    """Prompts "Calculate: a + b =" with numbers up to 49."""
    rng, rows = random.Random(0), []
    for _ in range(count):
        a, b = rng.randint(1, 49), rng.randint(1, 49)
        rows.append({"prompt": f"Calculate: {a} + {b} =", "answer": str(a + b)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_worked_sums(path: Path, *, count: int = 2000) -> None:
    """Sums of three or four numbers in words after three worked examples: steps with filler between the decisions."""
    examples = "".join(f"{_asked(x)}{_worked(x)}\n\n" for x in ([3, 4, 5], [8, 6, 2, 7], [5, 9, 7]))
    rng, rows = random.Random(1), []
    for _ in range(count):
        numbers = [rng.randint(2, 9) for _ in range(rng.choice((3, 4)))]
        rows.append({"prompt": examples + _asked(numbers), "answer": str(sum(numbers))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _asked(numbers: list[int]) -> str:
    return f"Question: {' + '.join(map(str, numbers))}\nAnswer:"


def _worked(numbers: list[int]) -> str:
    total, text = numbers[0], ""
    for word, x in zip(("First", "Then", "Then"), numbers[1:], strict=False):
        text += f" {word} we add {total} and {x}, and {total} + {x} = {total + x}."
        total += x
    return f"{text} So {total}."


def first_three(config: CreditConfig, tokens: Tokens) -> Credit:
    """GRPO's credit on the first three tokens alone, which hold the answer: an oracle."""
    rank_t = tokens.mask_t.cumsum(-1)
    return replace(assign_credit(config, tokens), mask=tokens.mask_t * (rank_t <= 3))
