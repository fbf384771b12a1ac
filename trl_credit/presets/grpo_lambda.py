"""GRPO-λ (arXiv 2510.00194): λ-returns as a trace over log-ratios (ε-trace).

GRPO gives every token of a response the same credit, since it has no values for the states in between. GRPO-λ
multiplies the ratio of a token by the ratios of the tokens before it, with a smaller exponent the farther back they
are. It also raises advantages below −0.1 to −0.1. On-policy the credit flows back as with P-trace, but the ratio itself
changes, so later updates of a batch clip far more tokens.

Use it when: you want a trace, and no advantage below −0.1; most of the gain measured here came from this floor
Costs: one O(T) scan, and a reference pass (β = 0.04)
"""

from dataclasses import dataclass

from ..config import CreditConfig
from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class GRPOLambdaConfig(GRPOConfig):
    r"""
    Configuration of [`GRPOLambdaTrainer`]: [`GRPOConfig`] with the published setting.

    For the ε-weight, set `importance="token"`, `loss_weight="trace_past"` and `loss_weight_confidence="sigmoid"`. The
    loss is PPO's min(ρA, clip(ρ)A) as in Sec. 3; set `clip_form="ratio"` for Algorithm 1's −min(ρ, clip ρ)·A, and
    `td_upper_bound=True` for the bound of App. A.2. The floor of Eq. 17 and 18 is not implemented
    (`trl-credit help theory`).

    Parameters:
        importance (`str`, *optional*, defaults to `"lambda_trace"`): log importance weight W.
        trace_lambda (`float`, *optional*, defaults to `0.99`): λ of the trace.
        advantage_floor (`float`, *optional*, defaults to `-0.1`): smaller advantages are raised to it.
        beta (`float`, *optional*, defaults to `0.04`): coefficient of the KL term.
        max_grad_norm (`float`, *optional*, defaults to `1.0`): largest norm of the gradient.
    """

    importance: str = "lambda_trace"
    trace_lambda: float = 0.99
    advantage_floor: float | None = -0.1
    beta: float = 0.04
    max_grad_norm: float = 1.0


def _uses(args: CreditConfig) -> bool:
    weighs = args.importance == "lambda_trace" or args.loss_weight != "none"
    return weighs or args.advantage_floor is not None or args.clip_form == "ratio"


PRESET = Preset(
    name="GRPO-λ",
    paper=PAPERS["2510.00194"],
    summary="the log-ratio of a token also has the decayed log-ratios of earlier tokens",
    formula="W = Σ_{k≤t} g^{t−k} (ℓ_k − ℓ°_k), A = group advantage raised to at least −0.1, M = all tokens",
    config=GRPOLambdaConfig,
    uses=_uses,
)
