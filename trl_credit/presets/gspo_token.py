"""GSPO-token (arXiv 2507.18071, Sec. 4.3): GSPO's ratio, which also takes per-token advantages.

GSPO's ratio averages over the response, so advantages that differ within a response would be averaged away. GSPO-token
keeps the value of GSPO's ratio, and each token's gradient flows through its own log-probability. With one advantage per
response its gradient is that of GSPO, and it also takes an advantage per token.

Use it when: you want GSPO's ratio, and advantages that differ within a response
Costs: as GRPO
"""

from dataclasses import dataclass

from .gspo import GSPOConfig
from .preset import PAPERS, Preset


@dataclass
class GSPOTokenConfig(GSPOConfig):
    r"""
    Configuration of [`GSPOTokenTrainer`]: [`GSPOConfig`] with the published setting.

    Parameters:
        importance (`str`, *optional*, defaults to `"sequence_token"`): log importance weight W.
    """

    importance: str = "sequence_token"


PRESET = Preset(
    name="GSPO-token",
    paper=PAPERS["2507.18071"],
    summary="the same ratio, with room for per-token advantages",
    formula="W = sg(W of GSPO) + ℓ − sg(ℓ), A = any, M = all tokens",
    config=GSPOTokenConfig,
    uses=lambda args: args.importance == "sequence_token",
)
