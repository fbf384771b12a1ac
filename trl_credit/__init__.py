"""Fine-grained credit assignment for TRL's GRPOTrainer.

Importing this imports neither torch nor TRL: a name is imported when it is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


__version__ = "0.2.0"

# an algorithm's file in `presets`, and how the names of its configuration and its trainer begin; in the order of the
# README, with GRPO first, since all others build on it
_ALGORITHMS = """
    grpo GRPO  dapo DAPO  dr_grpo DrGRPO  p_trace PTrace  s_trace STrace  grpo_lambda GRPOLambda  fipo FIPO  gspo GSPO
    gspo_token GSPOToken  ha_dw HADW  opo OPO  clip_cov ClipCov  kl_cov KLCov  spo_chain SPOChain  spo_tree SPOTree
    vine_ppo VinePPO  opd OPD  rlsd RLSD  sdpo SDPO
""".split()
STEMS = dict(zip(_ALGORITHMS[::2], _ALGORITHMS[1::2], strict=True))
_MODULE_OF = {
    "ALGORITHMS": "trainer.named",
    "BatchTokens": "credit.tokens",
    "Credit": "credit.tokens",
    "CreditConfig": "config",
    "CreditPageCallback": "lab.viewer.trackers",
    "CreditTrainer": "trainer",
    "Preset": "presets",
    "StepRewards": "rewards.steps",
    "Tokens": "credit.tokens",
    "accuracy_reward": "rewards",
    "assign_credit": "loss.assignment",
    "check_credit": "testing",
    "knob": "config.knobs",
    "show_credit": "lab.viewer",
    **{f"{stem}Config": f"presets.{name}" for name, stem in STEMS.items()},
    **{f"{stem}Trainer": "trainer.named" for stem in STEMS.values()},
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
