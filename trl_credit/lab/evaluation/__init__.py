"""Evaluation of models on the papers' sets, by the papers' protocols. May import all subpackages but
`settings` and `cli`.

A name is imported when it is first used: the `--help` of training needs the protocols alone.
"""

from importlib import import_module
from typing import Any


_NAMES_OF = {
    "callback": ["EvaluationCallback"],
    "differences": ["compare_models"],
    "protocols": ["PROTOCOLS", "Protocol", "find_protocol", "ha_dw_level"],
    "runner": ["evaluate", "rescore"],
    "runs": ["plan_as_trained"],
    "sample_store": ["is_evaluation"],
    "score_report": ["forget_after"],
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
