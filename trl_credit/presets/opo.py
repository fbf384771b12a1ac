"""OPO (arXiv 2505.23585): exact on-policy learning with the optimal reward baseline.

When responses differ in length, the group's mean reward is not the baseline with the smallest gradient variance. OPO
weighs each reward in the baseline by the length of its response, and makes exactly one update per batch. The baseline
has the smallest variance if the variance of a response's score grows in proportion to its length.

Use it when: a batch has exactly one update, and responses differ in length
Costs: as GRPO
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class OPOConfig(GRPOConfig):
    r"""
    Configuration of [`OPOTrainer`]: [`GRPOConfig`] with the published setting.

    The paper is exactly on-policy: no std, no KL term, one update per batch. A run with more updates warns once. One
    update means one iteration, and `steps_per_generation` equal to `gradient_accumulation_steps`, TRL's default.

    The baseline is derived for the plain policy gradient, a sum over tokens, so the normalizer is Dr. GRPO's constant.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`): what the loss is divided by.
        baseline (`str`, *optional*, defaults to `"optimal"`): mean of the rewards, weighted by length.
        scale_rewards (`str`, *optional*, defaults to `"none"`): no division by a standard deviation.
        num_iterations (`int`, *optional*, defaults to `1`): updates per batch.
        beta (`float`, *optional*, defaults to `0.0`): coefficient of the KL term.
    """

    loss_type: str = "dr_grpo"
    baseline: str = "optimal"
    scale_rewards: str = "none"
    num_iterations: int = 1
    beta: float = 0.0


PRESET = Preset(
    name="OPO",
    paper=PAPERS["2505.23585"],
    summary="length-weighted optimal baseline",
    formula="W = ℓ − ℓ°, A = r − Σ L r / Σ L, M = all tokens",
    config=OPOConfig,
    uses=lambda args: args.baseline == "optimal",
)
