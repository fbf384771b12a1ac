"""GSPO (arXiv 2507.18071): one importance ratio per response."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


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
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "grpo"
    importance: str = "sequence"
    epsilon: float = 0.0003
    epsilon_high: float | None = 0.0004
    use_bias_correction_kl: bool = False


class GSPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`GSPOConfig`] as its configuration. GSPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "gspo"]
    _name = "GSPO"
    _paper = PAPER
    summary = "one importance ratio per response"
    formula = "W = mean over the response of ℓ − ℓ°, A = group advantage, M = all tokens"
    config_class = GSPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.importance == "sequence"
