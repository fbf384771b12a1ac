"""Fine-grained credit assignment for TRL's GRPOTrainer.

Importing this imports neither torch nor TRL: what is asked for is imported when it is asked for.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ._moved import find_moved_modules


__version__ = "0.1.0"
find_moved_modules()

# in which modules the names are; those of algorithms are in the algorithms' own
_HOMES = {
    "ALGORITHMS": "algorithms",
    "Credit": "credit.tokens",
    "CreditConfig": "config",
    "CreditTrainer": "trainer",
    "Tokens": "credit.tokens",
    "assign_credit": "assignment",
    "show_credit": "viewer",
}

# for editors and type checkers, which run nothing: derived by `python -m trl_credit.algorithms --write`
if TYPE_CHECKING:
    from .algorithms import ALGORITHMS
    from .algorithms.dapo import DAPOConfig, DAPOTrainer
    from .algorithms.dr_grpo import DrGRPOConfig, DrGRPOTrainer
    from .algorithms.grpo import GRPOConfig, GRPOTrainer
    from .algorithms.grpo_lambda import GRPOLambdaConfig, GRPOLambdaTrainer
    from .algorithms.gspo import GSPOConfig, GSPOTrainer
    from .algorithms.gspo_token import GSPOTokenConfig, GSPOTokenTrainer
    from .algorithms.ha_dw import HADWConfig, HADWTrainer
    from .algorithms.opo import OPOConfig, OPOTrainer
    from .algorithms.p_trace import PTraceConfig, PTraceTrainer
    from .algorithms.s_trace import STraceConfig, STraceTrainer
    from .algorithms.spo_chain import SPOChainConfig, SPOChainTrainer
    from .algorithms.spo_tree import SPOTreeConfig, SPOTreeTrainer
    from .algorithms.vine_ppo import VinePPOConfig, VinePPOTrainer
    from .assignment import assign_credit
    from .config import CreditConfig
    from .credit.tokens import Credit, Tokens
    from .trainer import CreditTrainer
    from .viewer import show_credit

__all__ = [
    "ALGORITHMS",
    "Credit",
    "CreditConfig",
    "CreditTrainer",
    "DAPOConfig",
    "DAPOTrainer",
    "DrGRPOConfig",
    "DrGRPOTrainer",
    "GRPOConfig",
    "GRPOLambdaConfig",
    "GRPOLambdaTrainer",
    "GRPOTrainer",
    "GSPOConfig",
    "GSPOTokenConfig",
    "GSPOTokenTrainer",
    "GSPOTrainer",
    "HADWConfig",
    "HADWTrainer",
    "OPOConfig",
    "OPOTrainer",
    "PTraceConfig",
    "PTraceTrainer",
    "SPOChainConfig",
    "SPOChainTrainer",
    "SPOTreeConfig",
    "SPOTreeTrainer",
    "STraceConfig",
    "STraceTrainer",
    "Tokens",
    "VinePPOConfig",
    "VinePPOTrainer",
    "assign_credit",
    "show_credit",
]

if not TYPE_CHECKING:  # a type checker would take any misspelt name for one that is found here

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):  # which tools ask every module for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _HOMES:
            return getattr(import_module(f".{_HOMES[name]}", __name__), name)
        if find_spec(f"{__name__}.{name}") is not None:
            return import_module(f".{name}", __name__)
        if name.endswith(("Config", "Trainer")):
            return getattr(import_module(".algorithms", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
