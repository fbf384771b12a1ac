"""Evaluation of models on the papers' sets, by the papers' protocols. May import every room but settings and cli."""

from ..statistics import (
    Difference,
    Interval,
    bootstrap_interval,
    difference_interval,
    holm,
    mean_interval,
    paired_difference,
    sign_flip_p,
    wilson_interval,
)
from .callback import EvaluationCallback
from .paired_report import compare_models
from .protocols import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from .runner import evaluate, rescore
from .score_report import forget_after
from .scores import average_at_k, best_at_k, majority_at_k, pass_at_k


__all__ = [
    "PROTOCOLS",
    "Difference",
    "EvaluationCallback",
    "Interval",
    "Protocol",
    "average_at_k",
    "best_at_k",
    "bootstrap_interval",
    "compare_models",
    "difference_interval",
    "evaluate",
    "find_protocol",
    "forget_after",
    "ha_dw_level",
    "holm",
    "majority_at_k",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "rescore",
    "sign_flip_p",
    "wilson_interval",
]
