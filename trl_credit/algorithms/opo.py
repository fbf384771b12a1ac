"""OPO (arXiv 2505.23585): exact on-policy learning with the optimal reward baseline."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from . import papers


@dataclass
class OPOConfig(CreditConfig):
    r"""
    Configuration of [`OPOTrainer`]: [`CreditConfig`] with the published setting.

    W = ℓ − ℓ°, A = r − Σ L r / Σ L, M = all tokens; no std, no KL, one update per batch.

    The baseline is derived for the plain policy gradient, a sum over tokens: hence Dr. GRPO's constant
    normaliser.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`)
        baseline (`str`, *optional*, defaults to `"optimal"`)
        scale_rewards (`str`, *optional*, defaults to `"none"`)
    """

    loss_type: str = "dr_grpo"
    baseline: str = "optimal"
    scale_rewards: str = "none"


class OPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`OPOConfig`] as its configuration. OPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "opo"]
    _name = "OPO"
    _paper = papers.OPO
    config_class = OPOConfig
