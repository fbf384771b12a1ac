"""GSPO (arXiv 2507.18071): one importance ratio per response."""

from dataclasses import dataclass

from ..config import CreditConfig
from .preset import Preset, paper


PAPER = paper(
    key="zheng2025group",
    title="Group Sequence Policy Optimization",
    authors="Chujie Zheng and Shixuan Liu and Mingze Li and Xiong-Hui Chen and Bowen Yu and Chang Gao and Kai Dang and "
    "Yuqiong Liu and Rui Men and An Yang and Jingren Zhou and Junyang Lin",
    year=2025,
    arxiv="2507.18071",
)


@dataclass
class GSPOConfig(CreditConfig):
    r"""
    Configuration of [`GSPOTrainer`]: [`CreditConfig`] with the published setting.

    The paper splits each rollout batch into four mini-batches: set `steps_per_generation` to four times
    `gradient_accumulation_steps`.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        importance (`str`, *optional*, defaults to `"sequence"`)
        epsilon (`float`, *optional*, defaults to `0.0003`)
        epsilon_high (`float`, *optional*, defaults to `0.0004`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            TRL's default multiplies the KL term by the importance weight; the paper does not.
    """

    loss_type: str = "grpo"
    importance: str = "sequence"
    epsilon: float = 0.0003
    epsilon_high: float | None = 0.0004
    use_bias_correction_kl: bool = False


PRESET = Preset(
    name="GSPO",
    tag="gspo",
    paper=PAPER,
    summary="one importance ratio per response",
    formula="W = mean over the response of ℓ − ℓ°, A = group advantage, M = all tokens",
    config=GSPOConfig,
    uses=lambda args: args.importance == "sequence",
)
