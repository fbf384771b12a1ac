"""DAPO (arXiv 2503.14476): token-mean loss, asymmetric clipping, truncated responses left out."""

from dataclasses import dataclass

from ..config import CreditConfig
from ..trainer import CreditTrainer
from .papers import paper


PAPER = paper(
    key="yu2025dapo",
    title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    authors="Qiying Yu and Zheng Zhang and Ruofei Zhu and Yufeng Yuan and others",
    year=2025,
    arxiv="2503.14476",
)


@dataclass
class DAPOConfig(CreditConfig):
    r"""
    Configuration of [`DAPOTrainer`]: [`CreditConfig`] with the published setting.

    Two parts of the paper are not in a configuration: its soft overlong punishment is a reward function
    (`trl_credit.rewards.soft_overlong_punishment`, `--reward accuracy soft_overlong`), and its dynamic sampling
    (drawing prompts until every group carries signal) has no counterpart here or in TRL: groups without signal stay in
    the batch, counted as `credit/groups_without_signal`. Data in which few prompts are always or never solved come
    nearest to it.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dapo"`)
        epsilon (`float`, *optional*, defaults to `0.2`)
        epsilon_high (`float`, *optional*, defaults to `0.28`)
        mask_truncated_completions (`bool`, *optional*, defaults to `True`)
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`)
            The papers' KL term is not multiplied by the importance weight, as TRL's is by default.
    """

    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = 0.28
    mask_truncated_completions: bool = True
    use_bias_correction_kl: bool = False


class DAPOTrainer(CreditTrainer):
    """[`CreditTrainer`] with [`DAPOConfig`] as its configuration. DAPO, see the module."""

    _tag_names = ["trl", "grpo", "trl-credit", "dapo"]
    _name = "DAPO"
    _paper = PAPER
    summary = "token-mean loss, asymmetric clipping, truncated responses left out"
    formula = "W = ℓ − ℓ°, A = group advantage, M = all tokens of finished responses"
    config_class = DAPOConfig

    @staticmethod
    def uses(args: CreditConfig) -> bool:
        return args.loss_type == "dapo"
