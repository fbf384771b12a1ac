"""HA-DW (arXiv 2601.08521): more weight for prompts that are harder than the model's recent accuracy suggests."""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import Preset, paper


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
    paper=paper(
        title="Your Group-Relative Advantage Is Biased",
        authors="Fengkai Yang and Zherui Chen and Xiaohan Wang and Xiaodong Lu and others",
        arxiv="2601.08521",
    ),
    summary="more weight for prompts harder than the recent record",
    formula="W = ℓ − ℓ°, A = group advantage · Φ(difficulty), M = all tokens",
    config=HADWConfig,
    uses=lambda args: args.difficulty != "none",
)
