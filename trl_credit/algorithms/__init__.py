"""Named presets of the knobs, one file per algorithm, and the dict that `--algo` reads."""

from .dapo import DAPOConfig, DAPOTrainer
from .dr_grpo import DrGRPOConfig, DrGRPOTrainer
from .grpo import GRPOConfig, GRPOTrainer
from .grpo_lambda import GRPOLambdaConfig, GRPOLambdaTrainer
from .gspo import GSPOConfig, GSPOTrainer
from .gspo_token import GSPOTokenConfig, GSPOTokenTrainer
from .ha_dw import HADWConfig, HADWTrainer
from .opo import OPOConfig, OPOTrainer
from .p_trace import PTraceConfig, PTraceTrainer
from .s_trace import STraceConfig, STraceTrainer
from .spo_chain import SPOChainConfig, SPOChainTrainer
from .spo_tree import SPOTreeConfig, SPOTreeTrainer
from .vine_ppo import VinePPOConfig, VinePPOTrainer


ALGORITHMS = {
    "grpo": (GRPOConfig, GRPOTrainer),
    "dapo": (DAPOConfig, DAPOTrainer),
    "dr_grpo": (DrGRPOConfig, DrGRPOTrainer),
    "p_trace": (PTraceConfig, PTraceTrainer),
    "s_trace": (STraceConfig, STraceTrainer),
    "grpo_lambda": (GRPOLambdaConfig, GRPOLambdaTrainer),
    "gspo": (GSPOConfig, GSPOTrainer),
    "gspo_token": (GSPOTokenConfig, GSPOTokenTrainer),
    "ha_dw": (HADWConfig, HADWTrainer),
    "opo": (OPOConfig, OPOTrainer),
    "spo_chain": (SPOChainConfig, SPOChainTrainer),
    "spo_tree": (SPOTreeConfig, SPOTreeTrainer),
    "vine_ppo": (VinePPOConfig, VinePPOTrainer),
}

__all__ = [
    "ALGORITHMS",
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
