"""OPO (arXiv 2505.23585): exact on-policy learning with the optimal reward baseline."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="hao2025onpolicy",
    title="On-Policy RL with Optimal Reward Baseline",
    authors="Yaru Hao and Li Dong and Xun Wu and Shaohan Huang and Zewen Chi and Furu Wei",
    year=2025,
    arxiv="2505.23585",
)


@dataclass
class OPOConfig(CreditConfig):
    r"""
    Configuration of [`OPOTrainer`]: [`CreditConfig`] with the published setting.

    No std, no KL, one update per batch: the paper is exactly on-policy, and a run that is not says so once. One update
    is `steps_per_generation` equal to `gradient_accumulation_steps`, which is TRL's default, and one iteration.

    The baseline is derived for the plain policy gradient, a sum over tokens: hence Dr. GRPO's constant
    normaliser.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`)
        baseline (`str`, *optional*, defaults to `"optimal"`)
        scale_rewards (`str`, *optional*, defaults to `"none"`)
        num_iterations (`int`, *optional*, defaults to `1`)
        beta (`float`, *optional*, defaults to `0.0`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "dr_grpo"
    baseline: str = "optimal"
    scale_rewards: str = "none"
    num_iterations: int = 1
    beta: float = 0.0
    use_bias_correction_kl: bool = False


class OPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`OPOConfig`] as its configuration. OPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "opo"]
    _name = "OPO"
    _paper = PAPER
    summary = "length-weighted optimal baseline"
    formula = "W = ℓ − ℓ°, A = r − Σ L r / Σ L, M = all tokens"
    config_class = OPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.baseline == "optimal"
