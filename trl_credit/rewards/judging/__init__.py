"""Decides in worker processes whether a model's answer equals the gold. Modules import only each other, relatively,
since a worker imports this folder without the rest of the package (see `worker.py`)."""

from .extract import extract_answer, read_gold
from .pool import JudgePool, default_pool
from .rules import Outcome


__all__ = ["JudgePool", "Outcome", "default_pool", "extract_answer", "read_gold"]
