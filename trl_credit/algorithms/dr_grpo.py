"""Dr. GRPO (arXiv 2503.20783): no length and no difficulty bias from the normalisers."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="liu2025understanding",
    title="Understanding R1-Zero-Like Training: A Critical Perspective",
    authors="Zichen Liu and Changyu Chen and Wenjun Li and Penghui Qi and Tianyu Pang and Chao Du and Wee Sun Lee and "
    "Min Lin",
    year=2025,
    arxiv="2503.20783",
)


@dataclass
class DrGRPOConfig(CreditConfig):
    r"""
    Configuration of [`DrGRPOTrainer`]: [`CreditConfig`] with the published setting.

    The sum of the loss over tokens is divided by a constant.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`)
        scale_rewards (`str`, *optional*, defaults to `"none"`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "dr_grpo"
    scale_rewards: str = "none"
    use_bias_correction_kl: bool = False


class DrGRPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`DrGRPOConfig`] as its configuration. Dr. GRPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "dr-grpo"]
    _name = "Dr. GRPO"
    _paper = PAPER
    summary = "no std, constant normaliser"
    formula = "W = ℓ − ℓ°, A = r − mean, M = all tokens"
    config_class = DrGRPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.loss_type == "dr_grpo"
