"""Fine-grained credit assignment for TRL's GRPOTrainer."""

from ._moved import find_moved_modules
from .algorithms import (
    ALGORITHMS,
    DAPOConfig,
    DAPOTrainer,
    DrGRPOConfig,
    DrGRPOTrainer,
    GRPOConfig,
    GRPOLambdaConfig,
    GRPOLambdaTrainer,
    GRPOTrainer,
    GSPOConfig,
    GSPOTokenConfig,
    GSPOTokenTrainer,
    GSPOTrainer,
    HADWConfig,
    HADWTrainer,
    OPOConfig,
    OPOTrainer,
    PTraceConfig,
    PTraceTrainer,
    SPOChainConfig,
    SPOChainTrainer,
    SPOTreeConfig,
    SPOTreeTrainer,
    STraceConfig,
    STraceTrainer,
    VinePPOConfig,
    VinePPOTrainer,
)
from .assignment import assign_credit
from .config import CreditConfig
from .credit.tokens import Credit, Tokens
from .trainer import CreditTrainer


__version__ = "0.1.0"
find_moved_modules()

__all__ = [
    "ALGORITHMS",
    "Credit",
    "Tokens",
    "assign_credit",
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
    "VinePPOConfig",
    "VinePPOTrainer",
]
