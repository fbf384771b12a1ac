"""pass@k, best@k, avg@k and maj@k of checkpoints on the papers' sets, under the papers' protocols."""

from .callback import EvaluationCallback
from .comparison import compare_models
from .differences import Difference, difference_interval, holm, paired_difference, sign_flip_p
from .estimators import (
    Interval,
    average_at_k,
    best_at_k,
    bootstrap_interval,
    majority_at_k,
    mean_interval,
    pass_at_k,
    wilson_interval,
)
from .protocols import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from .runner import evaluate, rescore
from .stale import forget_after


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
