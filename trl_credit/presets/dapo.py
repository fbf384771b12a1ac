"""DAPO (arXiv 2503.14476): token-mean loss, asymmetric clipping, no loss on truncated responses.

GRPO averages the loss within each response first, so a token of a long response counts less, and its clip holds back
improbable tokens. DAPO takes the mean over all tokens of the batch, raises the upper clip limit to 0.28, and leaves
truncated responses out of the loss. All tokens weigh the same, improbable tokens can gain more probability, and a
response is not punished for the length limit alone.

Use it when: responses differ much in length, and some reach the length limit
Costs: as GRPO; with `groups="refill"` more rollouts
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class DAPOConfig(GRPOConfig):
    r"""
    Configuration of [`DAPOTrainer`]: [`GRPOConfig`] with the published setting.

    Two parts of the paper are not in the configuration. Its soft overlong punishment is a reward function
    (`trl_credit.rewards.soft_overlong_punishment`, `--reward accuracy soft_overlong`). Its dynamic sampling, which
    draws prompts until every group has responses that are right and others that are not, is `groups="refill"`. The
    default is `groups="keep"`, which is ours: a refill may sample up to `max_refills` times as much.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dapo"`): what the loss is divided by.
        epsilon (`float`, *optional*, defaults to `0.2`): lower clip range.
        epsilon_high (`float`, *optional*, defaults to `0.28`): upper clip range.
        mask_truncated_completions (`bool`, *optional*, defaults to `True`): truncated responses stay out of the loss.
    """

    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = 0.28
    mask_truncated_completions: bool = True


PRESET = Preset(
    name="DAPO",
    paper=PAPERS["2503.14476"],
    summary="token-mean loss, asymmetric clipping, truncated responses left out",
    formula="W = ℓ − ℓ°, A = group advantage, M = all tokens of finished responses",
    config=DAPOConfig,
    uses=lambda args: args.loss_type == "dapo",
)
