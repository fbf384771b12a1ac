"""P-trace (arXiv 2605.05965): eligibility traces from every token."""

from dataclasses import dataclass

from ..config import CreditConfig
from .preset import Preset, paper


PAPER = paper(
    key="mou2026beyond",
    title="Beyond Uniform Credit Assignment: Selective Eligibility Traces for RLVR",
    authors="Chaoli Mou and Zhan Zhuang and Xinning Chen and Yu Zhang",
    year=2026,
    arxiv="2605.05965",
)


@dataclass
class PTraceConfig(CreditConfig):
    r"""
    Configuration of [`PTraceTrainer`]: [`CreditConfig`] with the published setting.

    Published setting: γ = 1, λ = 0.9, β = 0.001, ε = 0.2.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        importance (`str`, *optional*, defaults to `"eligible"`)
        beta (`float`, *optional*, defaults to `0.001`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
    """

    loss_type: str = "grpo"
    importance: str = "eligible"
    beta: float = 0.001
    use_bias_correction_kl: bool = False


PRESET = Preset(
    name="P-trace",
    tag="p-trace",
    paper=PAPER,
    summary="eligibility traces from every token",
    formula="W = sg(ℓ − ℓ°) + Σ_{k≤t} g^{t−k} (ℓ_k − sg ℓ_k), A = group advantage, M = all tokens",
    config=PTraceConfig,
    uses=lambda args: args.importance == "eligible" and args.selector == "none",
)
