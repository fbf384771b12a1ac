"""SPO-chain (arXiv 2505.23564): advantages of segments between tokens of low probability, by rollouts."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="guo2025segment",
    title="Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models",
    authors="Yiran Guo and Lijie Xu and Jie Liu and Dan Ye and Shuang Qiu",
    year=2025,
    arxiv="2505.23564",
)


@dataclass
class SPOChainConfig(CreditConfig):
    r"""
    Configuration of [`SPOChainTrainer`]: [`CreditConfig`] with the published setting.

    Segment Policy Optimization, not the Single-stream Policy Optimization that goes by the same letters. Published
    setting: 9 rollouts from every 5th cutpoint, β = 1e-4, ε = .2, two passes over each batch.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
            The mean over each response's kept tokens, then over responses (Eq. 3), as in the GRPO that the paper
            compares with; `"dapo"` is the mean over the kept tokens of the batch.
        rollouts (`str`, *optional*, defaults to `"chain"`)
        token_mask (`str`, *optional*, defaults to `"probability"`)
        beta (`float`, *optional*, defaults to `0.0001`)
        num_iterations (`int`, *optional*, defaults to `2`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
    """

    loss_type: str = "grpo"
    rollouts: str = "chain"
    token_mask: str = "probability"
    beta: float = 1e-4
    num_iterations: int = 2
    use_bias_correction_kl: bool = False


class SPOChainTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`SPOChainConfig`] as its configuration. SPO-chain, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "spo-chain"]
    _name = "SPO-chain"
    _paper = PAPER
    summary = "segments between unsure tokens, valued by rollouts from their ends"
    formula = "W = ℓ − ℓ°, A = V(segment's end) − V(segment's start), M = tokens with π_old < .9"
    config_class = SPOChainConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        chain = args.rollouts == "chain" and args.segmentation != "steps"
        return chain or args.token_mask == "probability" or args.policy_loss != "clip"
