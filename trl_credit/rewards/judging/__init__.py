"""Whether an answer that a model wrote equals the gold, found out in worker processes. Modules import each other
relatively and nothing else of the package, since a worker runs with this folder alone (see `worker.py`)."""

from .extract import LONGEST_ANSWER, extract_answer, read_gold
from .pool import ANSWER_TIMEOUT, SLOW_ANSWERS, JudgePool, default_pool
from .problem import restated, strict_rules
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
    "strict_rules",
]
