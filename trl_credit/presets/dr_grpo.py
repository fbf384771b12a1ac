"""Dr. GRPO (arXiv 2503.20783): normalizers without length bias and difficulty bias."""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import Preset, paper


@dataclass
class DrGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`DrGRPOTrainer`]: [`GRPOConfig`] with the published setting.

    The sum of the loss over tokens is divided by a constant.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`): what the loss is divided by.
        scale_rewards (`str`, *optional*, defaults to `"none"`): no division by a standard deviation.
    """

    loss_type: str = "dr_grpo"
    scale_rewards: str = "none"


PRESET = Preset(
    name="Dr. GRPO",
    paper=paper(
        title="Understanding R1-Zero-Like Training: A Critical Perspective",
        authors="Zichen Liu and Changyu Chen and Wenjun Li and Penghui Qi and Tianyu Pang and Chao Du and "
        "Wee Sun Lee and Min Lin",
        arxiv="2503.20783",
    ),
    summary="no std, constant normaliser",
    formula="W = ℓ − ℓ°, A = r − mean, M = all tokens",
    config=DrGRPOConfig,
    uses=lambda args: args.loss_type == "dr_grpo",
)
