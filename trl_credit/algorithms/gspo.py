"""GSPO (arXiv 2507.18071): one importance ratio per response."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from . import papers


@dataclass
class GSPOConfig(CreditConfig):
    r"""
    Configuration of [`GSPOTrainer`]: [`CreditConfig`] with the published setting.

    W = mean over the response of ℓ − ℓ°, A = group advantage, M = all tokens.

    The paper splits each rollout batch into four mini-batches: set `steps_per_generation` to four times
    `gradient_accumulation_steps`.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        importance (`str`, *optional*, defaults to `"sequence"`)
        epsilon (`float`, *optional*, defaults to `0.0003`)
        epsilon_high (`float`, *optional*, defaults to `0.0004`)
    """

    loss_type: str = "grpo"
    importance: str = "sequence"
    epsilon: float = 0.0003
    epsilon_high: float | None = 0.0004


class GSPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`GSPOConfig`] as its configuration. GSPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "gspo"]
    _name = "GSPO"
    _paper = papers.GSPO
    config_class = GSPOConfig
