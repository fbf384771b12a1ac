"""Fine-grained credit assignment for TRL's GRPOTrainer."""

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
    STraceConfig,
    STraceTrainer,
)
from .config import CreditConfig
from .trainer import CreditTrainer


__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
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
    "STraceConfig",
    "STraceTrainer",
]
