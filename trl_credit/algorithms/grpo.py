"""Group Relative Policy Optimization (arXiv 2402.03300): the baseline of every paper here."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from . import papers


@dataclass
class GRPOConfig(CreditConfig):
    r"""
    Configuration of [`GRPOTrainer`]: [`CreditConfig`] with the published setting.

    W = ℓ − ℓ°, A = group advantage, M = all tokens.

    `beta` keeps TRL's default of 0 (DeepSeekMath trained with 0.04).

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
    """

    loss_type: str = "grpo"


class GRPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`GRPOConfig`] as its configuration. GRPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "grpo"]
    _name = "GRPO"
    _paper = papers.GRPO
    config_class = GRPOConfig
