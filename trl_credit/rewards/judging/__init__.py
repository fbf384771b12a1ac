"""Whether an answer that a model wrote equals the gold: what counts as the answer, what equals what, and the processes
in which that is found out."""

from .extract import LONGEST_ANSWER, extract_answer, read_gold
from .pool import ANSWER_TIMEOUT, SLOW_ANSWERS, JudgePool, default_pool
from .problem import asks_order, is_product, names, restated
from .rules import Rules


__all__ = [
    "ANSWER_TIMEOUT",
    "SLOW_ANSWERS",
    "LONGEST_ANSWER",
    "JudgePool",
    "Rules",
    "asks_order",
    "default_pool",
    "extract_answer",
    "is_product",
    "names",
    "read_gold",
    "restated",
]
