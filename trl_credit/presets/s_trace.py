"""S-trace (arXiv 2605.05965): eligibility traces from the tokens with the highest entropy.

GRPO gives all tokens the same credit, although few of them decide the reward. If every token leaves a trace, which
passes later credit back to it, the noise of the others is passed on too. S-trace lets only the fifth of a response's
tokens with the highest entropy leave a trace. Uncertain tokens also get the credit of what came after them, and all
other tokens keep GRPO's credit.

Use it when: the learning rate is small, and much of a response is filler; not where the answer is at the very end
Costs: one O(T) scan, and a reference pass (β = 0.001)
"""

from dataclasses import dataclass

from .p_trace import PTraceConfig
from .preset import PAPERS, Preset


@dataclass
class STraceConfig(PTraceConfig):
    r"""
    Configuration of [`STraceTrainer`]: [`PTraceConfig`] with the published setting.

    Like P-trace, but only the selected tokens z leave a trace. A token's own gradient is exempt from the selection.

    Published setting: P-trace's, and ρ = 0.2.

    Parameters:
        selector (`str`, *optional*, defaults to `"entropy"`): tokens of highest entropy leave a trace.
    """

    selector: str = "entropy"


PRESET = Preset(
    name="S-trace",
    paper=PAPERS["2605.05965"],
    summary="eligibility traces from high-entropy tokens",
    formula="W = sg(ℓ − ℓ°) + (ℓ − sg ℓ) + Σ_{k<t} g^{t−k} z_k (ℓ_k − sg ℓ_k), A = group advantage, M = all tokens",
    config=STraceConfig,
    uses=lambda args: args.importance == "eligible" and args.selector != "none",
)
