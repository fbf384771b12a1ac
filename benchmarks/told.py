"""Contexts of the teachers of `benchmarks/teacher.py`, which have read the last digit of a solution before it."""

from typing import Any


def told(row: dict[str, Any]) -> str:
    """The context of a teacher that is told the answer."""
    return f"{row['answer']};{row['prompt']}"


def told_wrong(row: dict[str, Any]) -> str:
    """The context of a teacher that is told a wrong answer."""
    return f"{(int(row['answer']) + 3) % 10};{row['prompt']}"
