"""OPO (arXiv 2505.23585): exact on-policy learning with the optimal reward baseline."""

from dataclasses import dataclass

from ..config import CreditConfig
from .preset import Preset, paper


PAPER = paper(
    title="On-Policy RL with Optimal Reward Baseline",
    authors="Yaru Hao and Li Dong and Xun Wu and Shaohan Huang and Zewen Chi and Furu Wei",
    arxiv="2505.23585",
)


@dataclass
class OPOConfig(CreditConfig):
    r"""
    Configuration of [`OPOTrainer`]: [`CreditConfig`] with the published setting.

    The paper is exactly on-policy: no std, no KL term, one update per batch. A run with more updates warns once. One
    update means one iteration, and `steps_per_generation` equal to `gradient_accumulation_steps`, TRL's default.

    The baseline is derived for the plain policy gradient, a sum over tokens, so the normalizer is Dr. GRPO's constant.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`)
        baseline (`str`, *optional*, defaults to `"optimal"`)
        scale_rewards (`str`, *optional*, defaults to `"none"`)
        num_iterations (`int`, *optional*, defaults to `1`)
        beta (`float`, *optional*, defaults to `0.0`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            TRL's default multiplies the KL term by the importance weight; the paper does not.
    """

    loss_type: str = "dr_grpo"
    baseline: str = "optimal"
    scale_rewards: str = "none"
    num_iterations: int = 1
    beta: float = 0.0
    use_bias_correction_kl: bool = False


PRESET = Preset(
    name="OPO",
    paper=PAPER,
    summary="length-weighted optimal baseline",
    formula="W = ℓ − ℓ°, A = r − Σ L r / Σ L, M = all tokens",
    config=OPOConfig,
    uses=lambda args: args.baseline == "optimal",
)
