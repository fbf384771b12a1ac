"""Decides in worker processes whether a model's answer equals the gold. Modules import only each other, relatively,
since a worker imports this folder without the rest of the package (see `worker.py`)."""

from .extract import LONGEST_ANSWER, extract_answer, read_gold
from .pool import ANSWER_TIMEOUT, SLOW_ANSWERS, JudgePool, default_pool
from .problem import restated, rules_for
from .rules import Rules


__all__ = [
    "ANSWER_TIMEOUT",
    "LONGEST_ANSWER",
    "SLOW_ANSWERS",
    "JudgePool",
    "Rules",
    "default_pool",
    "extract_answer",
    "read_gold",
    "restated",
    "rules_for",
]
