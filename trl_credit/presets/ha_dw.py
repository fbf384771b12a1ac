"""HA-DW (arXiv 2601.08521): advantages weighed by how far a prompt is from the model's recent accuracy.

In a small group with right and wrong answers, the mean reward is too high on hard prompts and too low on easy ones.
HA-DW keeps a running belief about the policy's accuracy and multiplies the advantage by a factor of the distance
between a prompt's accuracy and the belief. On harder prompts right answers gain weight against wrong ones, and on
easier prompts it is the other way round. Prompts far from the belief weigh more, hard and easy ones alike.

Use it when: prompts differ much in difficulty and groups are small; measured here: no gain over GRPO shown
Costs: as GRPO
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class HADWConfig(GRPOConfig):
    r"""
    Configuration of [`HADWTrainer`]: [`GRPOConfig`] with the published setting.

    `difficulty="history"` adds HA-DW to any other preset. The paper gives no values for η, m, the smallest step of the
    belief and its start; those of [`CreditConfig`] are ours.

    Parameters:
        difficulty (`str`, *optional*, defaults to `"history"`): weight by a belief that follows the accuracy.
    """

    difficulty: str = "history"


PRESET = Preset(
    name="HA-DW",
    paper=PAPERS["2601.08521"],
    summary="more weight for right answers to hard prompts and wrong ones to easy prompts",
    formula="W = ℓ − ℓ°, A = group advantage · Φ(difficulty), M = all tokens",
    config=HADWConfig,
    uses=lambda args: args.difficulty != "none",
)
