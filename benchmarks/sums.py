"""Sums of two numbers for a language model, and of three or four with worked examples: prompts, and the reward."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

from trl_credit import Credit, CreditConfig, Tokens, assign_credit


_EXAMPLES = """Question: Tom has 3 apples and gets 4, then 5 more. How many?
Answer: He starts with 3 apples. With 4 more he has 3 + 4 = 7 apples. With 5 more he has 7 + 5 = 12 apples. So 12.

Question: Ann has 8 books and gets 6, then 2 more. How many?
Answer: She starts with 8 books. With 6 more she has 8 + 6 = 14 books. With 2 more she has 14 + 2 = 16 books. So 16.

Question: Bob has 5 coins and gets 9, then 7 more. How many?
Answer: He starts with 5 coins. With 9 more he has 5 + 9 = 14 coins. With 7 more he has 14 + 7 = 21 coins. So 21.

"""


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
    """Sums of three numbers in words after three worked examples: steps with filler between the decisions."""
    rng, rows = random.Random(1), []
    names, things = ("Tom", "Ann", "Bob", "Eve"), ("apples", "books", "coins", "stones")
    for _ in range(count):
        a, b, c = (rng.randint(2, 19) for _ in range(3))
        asked = f"{rng.choice(names)} has {a} {rng.choice(things)} and gets {b}, then {c} more. How many?"
        rows.append({"prompt": f"{_EXAMPLES}Question: {asked}\nAnswer:", "answer": str(a + b + c)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def first_three(config: CreditConfig, tokens: Tokens) -> Credit:
    """GRPO's credit on the first three tokens alone, which hold the answer: an oracle."""
    rank_t = tokens.mask_t.cumsum(-1)
    return replace(assign_credit(config, tokens), mask=tokens.mask_t * (rank_t <= 3))
