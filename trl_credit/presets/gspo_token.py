"""GSPO-token (arXiv 2507.18071, Sec. 4.3): GSPO's ratio, which also takes per-token advantages."""

from dataclasses import dataclass

from .gspo import PAPER, GSPOConfig
from .preset import Preset


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
    paper=PAPER,
    summary="the same ratio, with room for per-token advantages",
    formula="W = sg(W of GSPO) + ℓ − sg(ℓ), A = any, M = all tokens",
    config=GSPOTokenConfig,
    uses=lambda args: args.importance == "sequence_token",
)
