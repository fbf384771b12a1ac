"""Fine-grained credit assignment for TRL's GRPOTrainer.

Importing this imports neither torch nor TRL: a name is imported when it is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


__version__ = "0.2.0"

_MODULES = {
    "config": ("CreditConfig",),
    "credit.tokens": ("Credit", "Tokens"),
    "lab.viewer": ("show_credit",),
    "lab.viewer.trackers": ("CreditPageCallback",),
    "loss.assignment": ("assign_credit",),
    "presets.clip_cov": ("ClipCovConfig",),
    "presets.dapo": ("DAPOConfig",),
    "presets.dr_grpo": ("DrGRPOConfig",),
    "presets.fipo": ("FIPOConfig",),
    "presets.grpo": ("GRPOConfig",),
    "presets.grpo_lambda": ("GRPOLambdaConfig",),
    "presets.gspo": ("GSPOConfig",),
    "presets.gspo_token": ("GSPOTokenConfig",),
    "presets.ha_dw": ("HADWConfig",),
    "presets.kl_cov": ("KLCovConfig",),
    "presets.opo": ("OPOConfig",),
    "presets.p_trace": ("PTraceConfig",),
    "presets.s_trace": ("STraceConfig",),
    "presets.spo_chain": ("SPOChainConfig",),
    "presets.spo_tree": ("SPOTreeConfig",),
    "presets.vine_ppo": ("VinePPOConfig",),
    "rewards.steps": ("StepRewards",),
    "trainer": ("CreditTrainer",),
    "trainer.named": """
        ALGORITHMS ClipCovTrainer DAPOTrainer DrGRPOTrainer FIPOTrainer GRPOLambdaTrainer GRPOTrainer
        GSPOTokenTrainer GSPOTrainer HADWTrainer KLCovTrainer OPOTrainer PTraceTrainer SPOChainTrainer
        SPOTreeTrainer STraceTrainer VinePPOTrainer
    """.split(),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
