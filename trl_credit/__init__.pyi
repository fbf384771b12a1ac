# For editors and type checkers, which do not run __getattr__: the names of __init__.py, compared by a test.
from .config import CreditConfig
from .credit.tokens import BatchTokens, Credit, Tokens
from .lab.viewer import show_credit
from .lab.viewer.trackers import CreditPageCallback
from .loss.assignment import assign_credit
from .presets.clip_cov import ClipCovConfig
from .presets.dapo import DAPOConfig
from .presets.dr_grpo import DrGRPOConfig
from .presets.fipo import FIPOConfig
from .presets.grpo import GRPOConfig
from .presets.grpo_lambda import GRPOLambdaConfig
from .presets.gspo import GSPOConfig
from .presets.gspo_token import GSPOTokenConfig
from .presets.ha_dw import HADWConfig
from .presets.kl_cov import KLCovConfig
from .presets.opo import OPOConfig
from .presets.p_trace import PTraceConfig
from .presets.s_trace import STraceConfig
from .presets.spo_chain import SPOChainConfig
from .presets.spo_tree import SPOTreeConfig
from .presets.vine_ppo import VinePPOConfig
from .rewards.steps import StepRewards
from .trainer import CreditTrainer
from .trainer.named import (
    ALGORITHMS,
    ClipCovTrainer,
    DAPOTrainer,
    DrGRPOTrainer,
    FIPOTrainer,
    GRPOLambdaTrainer,
    GRPOTrainer,
    GSPOTokenTrainer,
    GSPOTrainer,
    HADWTrainer,
    KLCovTrainer,
    OPOTrainer,
    PTraceTrainer,
    SPOChainTrainer,
    SPOTreeTrainer,
    STraceTrainer,
    VinePPOTrainer,
)

__version__: str

__all__ = [
    "ALGORITHMS",
    "BatchTokens",
    "ClipCovConfig",
    "ClipCovTrainer",
    "Credit",
    "CreditConfig",
    "CreditPageCallback",
    "CreditTrainer",
    "DAPOConfig",
    "DAPOTrainer",
    "DrGRPOConfig",
    "DrGRPOTrainer",
    "FIPOConfig",
    "FIPOTrainer",
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
    "KLCovConfig",
    "KLCovTrainer",
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
    "StepRewards",
    "Tokens",
    "VinePPOConfig",
    "VinePPOTrainer",
    "assign_credit",
    "show_credit",
]
