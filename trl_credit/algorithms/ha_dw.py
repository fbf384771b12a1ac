"""HA-DW (arXiv 2601.08521): more weight for prompts harder than the model's recent record."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from . import papers


@dataclass
class HADWConfig(CreditConfig):
    r"""
    Configuration of [`HADWTrainer`]: [`CreditConfig`] with the published setting.

    W = ℓ − ℓ°, A = group advantage · Φ(difficulty), M = all tokens.

    Also on any other preset, by `difficulty="history"`.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        difficulty (`str`, *optional*, defaults to `"history"`)
    """

    loss_type: str = "grpo"
    difficulty: str = "history"


class HADWTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`HADWConfig`] as its configuration. HA-DW, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "ha-dw"]
    _name = "HA-DW"
    _paper = papers.HA_DW
    config_class = HADWConfig
