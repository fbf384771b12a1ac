# For editors and type checkers, which do not run __getattr__: the names of __init__.py, compared by a test.
from .config import CreditConfig
from .config.knobs import knob
from .credit.tokens import BatchTokens, Credit, Tokens
from .lab.viewer import show_credit
from .lab.viewer.trackers import CreditPageCallback
from .loss.assignment import assign_credit
from .presets import Preset
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
from .presets.opd import OPDConfig
from .presets.opo import OPOConfig
from .presets.p_trace import PTraceConfig
from .presets.rlsd import RLSDConfig
from .presets.s_trace import STraceConfig
from .presets.sdpo import SDPOConfig
from .presets.spo_chain import SPOChainConfig
from .presets.spo_tree import SPOTreeConfig
from .presets.vine_ppo import VinePPOConfig
from .rewards import accuracy_reward
from .rewards.steps import StepRewards
from .testing import check_credit
from .trainer import CreditTrainer
from .trainer.named import ALGORITHMS

__version__: str

class ClipCovTrainer(CreditTrainer): ...
class DAPOTrainer(CreditTrainer): ...
class DrGRPOTrainer(CreditTrainer): ...
class FIPOTrainer(CreditTrainer): ...
class GRPOLambdaTrainer(CreditTrainer): ...
class GRPOTrainer(CreditTrainer): ...
class GSPOTokenTrainer(CreditTrainer): ...
class GSPOTrainer(CreditTrainer): ...
class HADWTrainer(CreditTrainer): ...
class KLCovTrainer(CreditTrainer): ...
class OPDTrainer(CreditTrainer): ...
class OPOTrainer(CreditTrainer): ...
class PTraceTrainer(CreditTrainer): ...
class RLSDTrainer(CreditTrainer): ...
class SDPOTrainer(CreditTrainer): ...
class SPOChainTrainer(CreditTrainer): ...
class SPOTreeTrainer(CreditTrainer): ...
class STraceTrainer(CreditTrainer): ...
class VinePPOTrainer(CreditTrainer): ...

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
    "OPDConfig",
    "OPDTrainer",
    "OPOConfig",
    "OPOTrainer",
    "PTraceConfig",
    "PTraceTrainer",
    "Preset",
    "RLSDConfig",
    "RLSDTrainer",
    "SDPOConfig",
    "SDPOTrainer",
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
    "accuracy_reward",
    "assign_credit",
    "check_credit",
    "knob",
    "show_credit",
]
