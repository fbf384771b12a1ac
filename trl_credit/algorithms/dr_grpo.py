"""Dr. GRPO (arXiv 2503.20783): no length and no difficulty bias from the normalisers."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from . import papers


@dataclass
class DrGRPOConfig(CreditConfig):
    r"""
    Configuration of [`DrGRPOTrainer`]: [`CreditConfig`] with the published setting.

    W = ℓ − ℓ°, A = r − mean, M = all tokens; the loss is divided by a constant.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`)
        scale_rewards (`str`, *optional*, defaults to `"none"`)
    """

    loss_type: str = "dr_grpo"
    scale_rewards: str = "none"


class DrGRPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`DrGRPOConfig`] as its configuration. Dr. GRPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "dr-grpo"]
    _name = "Dr. GRPO"
    _paper = papers.DR_GRPO
    config_class = DrGRPOConfig
