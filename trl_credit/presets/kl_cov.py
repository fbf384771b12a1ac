"""KL-Cov (arXiv 2505.22617): a penalty on the drift of the tokens of highest covariance, and no clipping.

A few tokens make the entropy fall most: those with a high product of (A − mean A) and (ℓ° − mean ℓ°), their covariance.
KL-Cov adds a penalty on how far the log-probability of these tokens has moved since sampling, and clips no ratio. These
tokens move less, the entropy falls more slowly, and every token keeps a gradient.

Use it when: as Clip-Cov, but the chosen tokens get a KL penalty instead of no gradient; not measured here
Costs: one more forward pass per batch, for π_old; it samples once for 8 updates
"""

from dataclasses import dataclass

import torch

from ..config import CreditConfig
from ..config.algorithm import settings_from
from ..config.knobs import NOT_NEGATIVE, SHARE, knob, when
from ..config.rules import NO_WEIGHTED_KL, WEIGHTED_KL, Rule
from ..credit.covariance import kl_cov_tokens
from ..credit.tokens import BatchTokens, Credit, Tokens, as_batch, wide
from ..loss.assignment import assign_credit
from .clip_cov import LOSS_RULE, TREE_RULE, ByBatch
from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class KLCov(ByBatch):
    """KL-Cov: the loss −A·ρ, plus a multiple of |log ρ| at the chosen tokens. Its W is 0, so nothing is clipped."""

    cov_share: float = knob(2e-3, SHARE)
    cov_penalty: float = knob(1.0, NOT_NEGATIVE)

    carries_loss = True
    needs_drift = True

    def chosen(self, config: CreditConfig, batch: BatchTokens) -> torch.Tensor:
        """1 for the tokens with a penalty."""
        advantage_t, mask_t = batch.advantage_t, batch.mask_t
        return kl_cov_tokens(batch.logp_t, advantage_t=advantage_t, share=self.cov_share, mask_t=mask_t)

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        chosen_t = tokens.statistics_t if self.cov_statistics == "batch" else self.chosen(config, as_batch(tokens))
        log_ratio_t = torch.where(tokens.mask_t.bool(), tokens.logp_t - tokens.old_logp_t, 0.0)
        gain_t = wide(assign_credit(config, tokens).advantage) * log_ratio_t.exp()
        return Credit(None, gain_t - self.cov_penalty * chosen_t * log_ratio_t.abs())


CREDIT = f"{__name__}.KLCov"


@settings_from(KLCov)
@dataclass
class KLCovConfig(GRPOConfig):
    r"""
    Configuration of [`KLCovTrainer`]: [`GRPOConfig`] with the published setting.

    The statistics are those of [`ClipCovConfig`], with `cov_statistics="batch"` as our default. The gradient of |log ρ|
    is 0 at ρ = 1 and ±1 next to it: in the first update of a batch KL-Cov is plain GRPO if the pass for π_old and that
    of the loss agree to the last bit, else the chosen tokens get the sign of a rounding. A batch makes 8 updates.

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.kl_cov.KLCov"`): this algorithm.
        loss_type (`str`, *optional*, defaults to `"dapo"`): what the loss is divided by.
        cov_share (`float`, *optional*, defaults to `0.002`):
            The share of the tokens with a penalty, at least one unless it is 0 (0.0002 in the script for 32B).
        cov_penalty (`float`, *optional*, defaults to `1.0`):
            The factor of |log ρ|, as in the released scripts (0.1 in verl's configuration).
        cov_statistics (`str`, *optional*, defaults to `"batch"`):
            The generation `"batch"`, or the `"microbatch"` as in the released code.
    """

    RULES = (
        Rule({}, when(credit=CREDIT), "KL-Cov is this object, whose method yours may call"),
        Rule({}, when(importance="token", off_policy_mask_threshold=None), "it has its own loss per token"),
        Rule({}, when(epsilon=0.2, epsilon_high=None, delta=None, clip_form="surrogate"), "its loss is not clipped"),
        Rule(WEIGHTED_KL, NO_WEIGHTED_KL, "TRL's KL term would lose its ratio, since the W of KL-Cov is 0"),
        LOSS_RULE,
        TREE_RULE,
    )
    updates_per_batch = 8

    credit: str | None = CREDIT
    loss_type: str = "dapo"


PRESET = Preset(
    name="KL-Cov",
    paper=PAPERS["2505.22617"],
    summary="no clipping, and a penalty on the drift of the tokens of highest covariance of A and ℓ",
    formula="W = 0, A = ρ · group advantage − |log ρ| where (A − mean A)(ℓ° − mean ℓ°) is largest, M = all tokens",
    config=KLCovConfig,
)
