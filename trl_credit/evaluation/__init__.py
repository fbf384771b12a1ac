"""pass@k, best@k, avg@k and maj@k of checkpoints on the papers' sets, under the papers' protocols."""

from .callback import EvaluationCallback
from .estimators import average_at_k, best_at_k, bootstrap_interval, majority_at_k, pass_at_k
from .protocols import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from .runner import evaluate, rescore
from .stale import forget_after


__all__ = [
    "PROTOCOLS",
    "EvaluationCallback",
    "Protocol",
    "average_at_k",
    "best_at_k",
    "bootstrap_interval",
    "evaluate",
    "find_protocol",
    "forget_after",
    "ha_dw_level",
    "majority_at_k",
    "pass_at_k",
    "rescore",
]
