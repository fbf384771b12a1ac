"""S-trace (arXiv 2605.05965): eligibility traces from the tokens of highest entropy."""

from dataclasses import dataclass

from ..config import CreditConfig
from .p_trace import PAPER, PTraceConfig, PTraceTrainer


@dataclass
class STraceConfig(PTraceConfig):
    r"""
    Configuration of [`STraceTrainer`]: [`CreditConfig`] with the published setting.

    As P-trace, but only the selected tokens z leave a trace; a token's own gradient is exempt from the
    selection.

    Published setting: that of P-trace with ρ = .2.

    Parameters:
        selector (`str`, *optional*, defaults to `"entropy"`)
    """

    selector: str = "entropy"


class STraceTrainer(PTraceTrainer):
    """[`CreditTrainer`] with [`STraceConfig`] as its configuration. S-trace, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "s-trace"]
    _name = "S-trace"
    _paper = PAPER
    summary = "eligibility traces from high-entropy tokens"
    formula = "W = sg(ℓ − ℓ°) + (ℓ − sg ℓ) + Σ_{k<t} g^{t−k} z_k (ℓ_k − sg ℓ_k), A = group advantage, M = all tokens"
    config_class = STraceConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.importance == "eligible" and args.selector != "none"
