"""Group Relative Policy Optimization (arXiv 2402.03300): the baseline of all other papers here.

A critic that values every token would be a second model of about the policy's size. GRPO samples several responses per
prompt and compares each reward with the mean of its group, in units of the group's standard deviation. All tokens of a
response get the same advantage, whether they decided the answer or not.

Use it when: always, as the baseline; tune its learning rate first
Costs: the baseline
"""

from dataclasses import dataclass

from ..config import CreditConfig
from .preset import PAPERS, Preset


@dataclass
class GRPOConfig(CreditConfig):
    r"""
    Configuration of [`GRPOTrainer`]: [`CreditConfig`] with the published setting.

    `beta` keeps TRL's default of 0; DeepSeekMath trained with 0.04.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`): what the loss is divided by.
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`):
            the KL term is not multiplied by the importance ratio.
            TRL's default multiplies the KL term by the importance weight; the paper does not.
    """

    loss_type: str = "grpo"
    use_bias_correction_kl: bool = False


PRESET = Preset(
    name="GRPO",
    paper=PAPERS["2402.03300"],
    summary="one advantage per response",
    formula="W = ℓ − ℓ°, A = group advantage, M = all tokens",
    config=GRPOConfig,
    uses=lambda args: True,  # all other algorithms build on it
)
