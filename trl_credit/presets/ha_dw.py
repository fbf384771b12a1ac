"""HA-DW (arXiv 2601.08521): more weight for prompts that are harder than the model's recent accuracy suggests."""

from dataclasses import dataclass

from ..config import CreditConfig
from .preset import Preset, paper


PAPER = paper(
    key="yang2026group",
    title="Your Group-Relative Advantage Is Biased",
    authors="Fengkai Yang and Zherui Chen and Xiaohan Wang and Xiaodong Lu and others",
    year=2026,
    arxiv="2601.08521",
)


@dataclass
class HADWConfig(CreditConfig):
    r"""
    Configuration of [`HADWTrainer`]: [`CreditConfig`] with the published setting.

    `difficulty="history"` adds HA-DW to any other preset. The paper gives no values for η, m, the smallest step of the
    belief and its start; those of [`CreditConfig`] are ours.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        difficulty (`str`, *optional*, defaults to `"history"`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            TRL's default multiplies the KL term by the importance weight; the paper does not.
    """

    loss_type: str = "grpo"
    difficulty: str = "history"
    use_bias_correction_kl: bool = False


PRESET = Preset(
    name="HA-DW",
    tag="ha-dw",
    paper=PAPER,
    summary="more weight for prompts harder than the recent record",
    formula="W = ℓ − ℓ°, A = group advantage · Φ(difficulty), M = all tokens",
    config=HADWConfig,
    uses=lambda args: args.difficulty != "none",
)
