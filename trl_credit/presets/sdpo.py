"""SDPO (arXiv 2601.20802): the policy distills itself, told a right response of the same group.

A group with one right response has shown how the problem is solved, but GRPO tells the others only that they were
wrong. SDPO shows the right response to a slowly moving copy of the policy, which scores each token of the others. The
policy moves towards that teacher at every token. Groups without a right response teach nothing.

Use it when: groups have right and wrong responses, and the model learns from a solution in its prompt
Costs: one forward pass per batch, without a gradient; a copy of the trained weights
"""

from dataclasses import dataclass

import torch

from ..config import CreditConfig
from ..config.algorithm import settings_from
from ..config.knobs import POSITIVE, SHARE, knob, when
from ..config.rules import NO_WEIGHTED_KL, WEIGHTED_KL, Rule
from ..credit.tokens import Credit, Tokens, wide
from ..loss.assignment import assign_credit
from .grpo import GRPOConfig
from .opd import NO_OUTCOME, gap_of
from .preset import PAPERS, Preset


@dataclass
class SDPO:
    """SDPO: the loss −min(ρ, c)·d·ℓ, mixed with the policy loss."""

    distillation_weight: float = knob(1.0, SHARE)
    distillation_ratio_max: float = knob(2.0, POSITIVE)

    needs = ("teacher",)
    carries_loss = True
    by_row = True

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        inside, (low, high) = tokens.mask_t.bool(), config.clip_range
        logp_t = torch.where(inside, tokens.logp_t, 0.0)
        ratio_t = torch.where(inside, tokens.logp_t - tokens.old_logp_t, 0.0).exp()
        gap_t = gap_of(tokens, student="current").nan_to_num(nan=0.0)
        gain_t = ratio_t.detach().clamp(max=self.distillation_ratio_max) * gap_t * logp_t
        if self.distillation_weight < 1.0:
            advantage_t = wide(assign_credit(config, tokens).advantage)
            policy_t = torch.minimum(ratio_t * advantage_t, ratio_t.clamp(low, high) * advantage_t)
            gain_t = (1 - self.distillation_weight) * policy_t + self.distillation_weight * gain_t
        return Credit(None, gain_t)


CREDIT = f"{__name__}.SDPO"


@settings_from(SDPO)
@dataclass
class SDPOConfig(GRPOConfig):
    r"""
    Configuration of [`SDPOTrainer`]: [`GRPOConfig`] with the setting of the sampled-token loss in TRL's `sdpo`.

    The loss of a token is −sg(min(ρ, 2)·d)·ℓ, with d = ℓᵀ − ℓ. It is averaged over the response, then over all
    responses. In rows without a context d is 0. The paper also has losses over the whole vocabulary, which we lack, and
    feedback of the environment in the context, which enters here as a column of the data only.

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.sdpo.SDPO"`): this algorithm.
        teacher (`str`, *optional*, defaults to `"policy"`): the teacher's weights.
        teacher_sync_steps (`int`, *optional*, defaults to `1`): optimizer steps after which they are renewed.
        teacher_update_rate (`float`, *optional*, defaults to `0.05`): share of the policy in the moving average.
        teacher_prompt (`str`, *optional*, defaults to `"success"`): a right response of the group, in our words.
        distillation_weight (`float`, *optional*, defaults to `1.0`):
            w in [0, 1]. The loss is (1−w) times the policy loss plus w times the teacher's.
        distillation_ratio_max (`float`, *optional*, defaults to `2.0`):
            The largest ρ = exp(ℓ − ℓ°) that counts.
    """

    RULES = (
        Rule({}, when(credit=CREDIT), "SDPO is this object, whose method yours may call"),
        Rule({}, when(loss_type=("grpo", "bnpo", "dr_grpo", "dapo")), "it has its own loss per token"),
        Rule({}, when(importance="token", off_policy_mask_threshold=None), "it has its own loss per token"),
        Rule(when(distillation_weight=1.0), NO_OUTCOME, "the loss of the teacher alone reads no advantage"),
        Rule({}, when(clip_form="surrogate", delta=None), "its policy loss is PPO's minimum"),
        Rule(WEIGHTED_KL, NO_WEIGHTED_KL, "TRL's KL term would lose its ratio, since the W of SDPO is 0"),
    )

    credit: str | None = CREDIT
    teacher: str | None = "policy"
    teacher_sync_steps: int | None = 1
    teacher_update_rate: float = 0.05
    teacher_prompt: str | None = "success"


PRESET = Preset(
    name="SDPO",
    paper=PAPERS["2601.20802"],
    summary="distills a moving copy of the policy that sees a right response of the group",
    formula="W = 0, A = sg(min(ρ, 2) (ℓᵀ − ℓ)) ℓ, M = all tokens",
    config=SDPOConfig,
)
