"""Evaluation of models on the papers' sets, by the papers' protocols. May import all subpackages but
`settings` and `cli`.

A name is imported when it is first used: the `--help` of training needs the protocols alone.
"""

from importlib import import_module
from typing import Any


_MODULE_OF = {
    "PROTOCOLS": "protocols",
    "EvaluationCallback": "callback",
    "Protocol": "protocols",
    "compare_models": "differences",
    "evaluate": "runner",
    "find_protocol": "protocols",
    "forget_after": "score_report",
    "ha_dw_level": "protocols",
    "is_evaluation": "sample_store",
    "plan_as_trained": "runs",
    "rescore": "runner",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
