"""Evaluation of models on the papers' sets, by the papers' protocols. May import all subpackages but
`settings` and `cli`."""

from .callback import EvaluationCallback
from .paired_report import compare_models
from .protocols import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from .runner import evaluate, rescore
from .score_report import forget_after


__all__ = [
    "PROTOCOLS",
    "EvaluationCallback",
    "Protocol",
    "compare_models",
    "evaluate",
    "find_protocol",
    "forget_after",
    "ha_dw_level",
    "rescore",
]
