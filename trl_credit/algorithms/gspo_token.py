"""GSPO-token (arXiv 2507.18071, Sec. 4.3): GSPO's ratio with room for per-token advantages."""

from dataclasses import dataclass

from . import papers
from .gspo import GSPOConfig, GSPOTrainer


@dataclass
class GSPOTokenConfig(GSPOConfig):
    r"""
    Configuration of [`GSPOTokenTrainer`]: [`CreditConfig`] with the published setting.

    W = sg(W of GSPO) + ℓ − sg(ℓ), A = any, M = all tokens.

    Parameters:
        importance (`str`, *optional*, defaults to `"sequence_token"`)
    """

    importance: str = "sequence_token"


class GSPOTokenTrainer(GSPOTrainer):
    """[`CreditTrainer`] with [`GSPOTokenConfig`] as its configuration. GSPO-token, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "gspo-token"]
    _name = "GSPO-token"
    _paper = papers.GSPO
    config_class = GSPOTokenConfig
