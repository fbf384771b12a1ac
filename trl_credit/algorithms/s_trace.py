"""S-trace (arXiv 2605.05965): eligibility traces from the tokens of highest entropy."""

from dataclasses import dataclass

from . import papers
from .p_trace import PTraceConfig, PTraceTrainer


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
    _paper = papers.S_TRACE
    config_class = STraceConfig
