"""HA-DW (arXiv 2601.08521): more weight for prompts harder than the model's recent record."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="yang2026group",
    title="Your Group-Relative Advantage Is Biased",
    authors="Fengkai Yang and Zherui Chen and Xiaohan Wang and Xiaodong Lu and others",
    year=2026,
    arxiv="2601.08521",
)


@dataclass
class HADWConfig(CreditConfig):
    r"""
    Configuration of [`HADWTrainer`]: [`CreditConfig`] with the published setting.

    Also on any other preset, by `difficulty="history"`. The paper gives neither η nor m, no smallest step of the belief
    and no start of it: those of [`CreditConfig`] are ours.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"grpo"`)
        difficulty (`str`, *optional*, defaults to `"history"`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "grpo"
    difficulty: str = "history"
    use_bias_correction_kl: bool = False


class HADWTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`HADWConfig`] as its configuration. HA-DW, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "ha-dw"]
    _name = "HA-DW"
    _paper = PAPER
    summary = "more weight for prompts harder than the recent record"
    formula = "W = ℓ − ℓ°, A = group advantage · Φ(difficulty), M = all tokens"
    config_class = HADWConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.difficulty != "none"
