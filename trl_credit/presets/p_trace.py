"""P-trace (arXiv 2605.05965): eligibility traces from every token.

GRPO gives every token of a response the same credit, so no token is credited for what came after it. P-trace adds the
log-probabilities of earlier tokens, decayed by γλ per token, to each token's log importance weight, in the gradient
alone. A token also gets the credit of the tokens after it, so the last tokens get least, while ratios and clipping stay
those of GRPO.

Use it when: you compare with S-trace: all tokens leave a trace, not only those of high entropy
Costs: one O(T) scan, and a reference pass (β = 0.001)
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class PTraceConfig(GRPOConfig):
    r"""
    Configuration of [`PTraceTrainer`]: [`GRPOConfig`] with the published setting.

    Published setting: γ = 1, λ = 0.9, β = 0.001, ε = 0.2.

    Parameters:
        importance (`str`, *optional*, defaults to `"eligible"`): log importance weight W.
        beta (`float`, *optional*, defaults to `0.001`): coefficient of the KL term.
    """

    importance: str = "eligible"
    beta: float = 0.001


PRESET = Preset(
    name="P-trace",
    paper=PAPERS["2605.05965"],
    summary="eligibility traces from every token",
    formula="W = sg(ℓ − ℓ°) + Σ_{k≤t} g^{t−k} (ℓ_k − sg ℓ_k), A = group advantage, M = all tokens",
    config=PTraceConfig,
    uses=lambda args: args.importance == "eligible" and args.selector == "none",
)
