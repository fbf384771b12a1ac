"""Group Relative Policy Optimization (arXiv 2402.03300): the baseline of every paper here."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="shao2024deepseekmath",
    title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    authors="Zhihong Shao and Peiyi Wang and Qihao Zhu and Runxin Xu and Junxiao Song and Mingchuan Zhang and Y. K. Li "
    "and Y. Wu and Daya Guo",
    year=2024,
    arxiv="2402.03300",
)


@dataclass
class GRPOConfig(CreditConfig):
    r"""
    Configuration of [`GRPOTrainer`]: [`CreditConfig`] with the published setting.

    `beta` keeps TRL's default of 0 (DeepSeekMath trained with 0.04).

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "grpo"
    use_bias_correction_kl: bool = False


class GRPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`GRPOConfig`] as its configuration. GRPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "grpo"]
    _name = "GRPO"
    _paper = PAPER
    summary = "one advantage per response"
    formula = "W = ℓ − ℓ°, A = group advantage, M = all tokens"
    config_class = GRPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return True  # all the others build on it
