"""Dr. GRPO (arXiv 2503.20783): normalizers without length bias and difficulty bias.

GRPO divides by the length of a response and by the standard deviation of its group's rewards. Dr. GRPO divides the loss
by a constant instead, and its advantage is the reward minus the group's mean. A long wrong response no longer gets a
smaller penalty per token, and very easy and very hard prompts no longer get a larger weight.

Use it when: response length and the spread of a group's rewards should not change the weight of a token
Costs: as GRPO
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


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
    paper=PAPERS["2503.20783"],
    summary="no std, constant normaliser",
    formula="W = ℓ − ℓ°, A = r − mean, M = all tokens",
    config=DrGRPOConfig,
    uses=lambda args: args.loss_type == "dr_grpo",
)
