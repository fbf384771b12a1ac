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

    No std, no KL, one update per batch.

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
    _paper = PAPER
    summary = "length-weighted optimal baseline"
    formula = "W = ℓ − ℓ°, A = r − Σ L r / Σ L, M = all tokens"
    config_class = OPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.baseline == "optimal"
