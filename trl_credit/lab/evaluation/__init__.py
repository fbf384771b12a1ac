"""Evaluation of models on the papers' sets, by the papers' protocols. May import all subpackages but
`settings` and `cli`."""

from .as_trained import plan_as_trained
from .callback import EvaluationCallback
from .paired_report import compare_models
from .protocols import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from .runner import evaluate, rescore
from .sample_store import has_stored
from .score_report import forget_after


__all__ = [
    "PROTOCOLS",
    "EvaluationCallback",
    "Protocol",
    "compare_models",
    "evaluate",
    "find_protocol",
    "forget_after",
    "has_stored",
    "plan_as_trained",
    "ha_dw_level",
    "rescore",
]
