"""Whether an answer that a model wrote equals the gold: what counts as the answer, what equals what, and the processes
in which that is found out."""

from .extract import LONGEST_ANSWER, extract_answer, read_gold
from .pool import ANSWER_TIMEOUT, JudgePool, default_pool


__all__ = ["ANSWER_TIMEOUT", "LONGEST_ANSWER", "JudgePool", "default_pool", "extract_answer", "read_gold"]
