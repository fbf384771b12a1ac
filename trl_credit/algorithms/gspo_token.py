"""GSPO-token (arXiv 2507.18071, Sec. 4.3): GSPO's ratio with room for per-token advantages."""

from dataclasses import dataclass

from ..config import CreditConfig
from .gspo import PAPER, GSPOConfig, GSPOTrainer


@dataclass
class GSPOTokenConfig(GSPOConfig):
    r"""
    Configuration of [`GSPOTokenTrainer`]: [`CreditConfig`] with the published setting.

    Parameters:
        importance (`str`, *optional*, defaults to `"sequence_token"`)
    """

    importance: str = "sequence_token"


class GSPOTokenTrainer(GSPOTrainer):
    """[`CreditTrainer`] with [`GSPOTokenConfig`] as its configuration. GSPO-token, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "gspo-token"]
    _name = "GSPO-token"
    _paper = PAPER
    summary = "the same ratio, with room for per-token advantages"
    formula = "W = sg(W of GSPO) + ℓ − sg(ℓ), A = any, M = all tokens"
    config_class = GSPOTokenConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.importance == "sequence_token"
