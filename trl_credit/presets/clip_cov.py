"""Clip-Cov (arXiv 2505.22617): a few tokens of high covariance lose their gradient, which keeps the entropy up.

A few tokens make the entropy fall most: those with a high product of (A − mean A) and (ℓ° − mean ℓ°), their covariance.
Clip-Cov takes the gradient from a small share of these tokens, drawn at random. The entropy falls more slowly, and all
other tokens keep their credit.

Use it when: the entropy falls too early in runs with several updates per batch; not measured here
Costs: one more forward pass per batch, for π_old; it samples once for 8 updates
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..config.algorithm import settings_from
from ..config.credit_config import LOW_HIGH, CreditConfig
from ..config.knobs import SHARE, anything_but, knob, one_of, when
from ..config.rules import PER_TOKEN, TOKEN_MEANS, WEIGHTED_RULE, Rule
from ..credit.covariance import clip_cov_tokens
from ..credit.tokens import BatchTokens, Credit, Tokens, as_batch
from ..loss.assignment import assign_credit
from ..loss.metrics import clipped_tokens
from .grpo import GRPOConfig
from .preset import PAPERS, Preset


LOSS_RULE = Rule({}, when(loss_type=TOKEN_MEANS, importance=PER_TOKEN), "it chooses among loss tokens")
TREE_RULE = Rule({}, when(rollouts=anything_but("tree")), "a node of a tree is in as many rows as lead through it")


@dataclass
class ByBatch:
    """Statistics of the generation batch, or of the micro-batch as in the released code."""

    cov_statistics: str = knob("batch", one_of("batch", "microbatch"))

    needs = ("logps",)

    @property
    def by_row(self) -> bool:
        return self.cov_statistics == "batch"

    @property
    def statistics(self) -> Callable[[CreditConfig, BatchTokens], torch.Tensor] | None:
        return self.chosen if self.cov_statistics == "batch" else None


@dataclass
class ClipCov(ByBatch):
    """Clip-Cov: M without the chosen tokens, which still count in the normaliser."""

    cov_share: float = knob(2e-4, SHARE)
    cov_range: list[float] = knob([1.0, 5.0], LOW_HIGH)

    def chosen(
        self, config: CreditConfig, batch: BatchTokens, *, clipped_t: torch.Tensor | None = None
    ) -> torch.Tensor:
        """1 for the tokens that lose their gradient."""
        return clip_cov_tokens(
            batch.logp_t,
            advantage_t=batch.advantage_t,
            share=self.cov_share,
            cov_range=self.cov_range,
            clipped_t=clipped_t,
            generator=batch.generator,
            mask_t=batch.mask_t,
        )

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        plain, chosen_t = assign_credit(config, tokens), tokens.statistics_t
        if self.cov_statistics == "microbatch":
            chosen_t = self.chosen(config, as_batch(tokens), clipped_t=clipped_tokens(config, plain, tokens))
        return replace(plain, mask=1.0 - chosen_t)


CREDIT = f"{__name__}.ClipCov"


@settings_from(ClipCov)
@dataclass
class ClipCovConfig(GRPOConfig):
    r"""
    Configuration of [`ClipCovTrainer`]: [`GRPOConfig`] with the published setting.

    The released code takes means and number of tokens of a micro-batch under the current policy, and chooses among
    tokens that PPO does not clip. Our default is the generation batch under π_old: the cut into micro-batches does not
    matter, and a token keeps its fate in all updates, also if PPO clips it later. There are 8 updates, see FIPOConfig.

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.clip_cov.ClipCov"`): this algorithm.
        loss_type (`str`, *optional*, defaults to `"dapo"`): what the loss is divided by.
        epsilon (`float`, *optional*, defaults to `1.0`): lower clip range.
        epsilon_high (`float`, *optional*, defaults to `1.0`): upper clip range.
        cov_share (`float`, *optional*, defaults to `0.0002`): The share of the tokens that lose their gradient.
        cov_range (`list[float]`, *optional*, defaults to `[1.0, 5.0]`): The range of the covariances of candidates.
        cov_statistics (`str`, *optional*, defaults to `"batch"`):
            The tokens whose means and choice count: the generation `"batch"`, or the `"microbatch"` as in the released
            code.
    """

    RULES = (
        LOSS_RULE,
        TREE_RULE,
        WEIGHTED_RULE,
        Rule({}, when(credit=CREDIT), "Clip-Cov is this object, whose method yours may call"),
    )
    updates_per_batch = 8

    credit: str | None = CREDIT
    loss_type: str = "dapo"
    epsilon: float = 1.0
    epsilon_high: float | None = 1.0


PRESET = Preset(
    name="Clip-Cov",
    paper=PAPERS["2505.22617"],
    summary="a random few tokens of high covariance of A and ℓ lose their gradient",
    formula="W = ℓ − ℓ°, A = group advantage, M = all but a few tokens with 1 < (A − mean A)(ℓ° − mean ℓ°) < 5",
    config=ClipCovConfig,
)
