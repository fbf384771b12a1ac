"""OPD (arXiv 2306.13649): on-policy distillation as an advantage for each token.

A reward at the end says nothing about single tokens. OPD has a teacher score the response that the policy sampled, and
adds the difference of log-probabilities to each token's advantage. Tokens that the teacher finds more probable become
more probable. Every token gets a signal, also in groups whose rewards are equal.

Use it when: you have a better model of the same family, or can tell a teacher the answer
Costs: one forward pass of the teacher per batch, without a gradient; the memory of the teacher
"""

from dataclasses import dataclass, replace

import torch

from ..config import CreditConfig
from ..config.algorithm import settings_from
from ..config.knobs import FINITE, NOT_NEGATIVE, knob, number, one_of, when
from ..config.rules import ANY_SIGN, PER_TOKEN, WEIGHTED_RULE, Rule
from ..credit.teacher import position_weight, teacher_gap
from ..credit.tokens import Credit, Tokens, wide
from ..loss.assignment import assign_credit
from .grpo import GRPOConfig
from .preset import PAPERS, Preset


STUDENT = one_of("old", "current")
NO_OUTCOME = when(difficulty="none", whiten_advantages="none", baseline="group", advantage_floor=None)
TOKEN_RULE = Rule({}, when(importance=PER_TOKEN), "it would average over the response or a turn what d makes differ")


def gap_of(tokens: Tokens, *, student: str) -> torch.Tensor:
    """d of a micro-batch, against π_old ("old") or the current policy ("current"), shape (B, T)."""
    logp_t = tokens.old_logp_t if student == "old" else tokens.logp_t
    return teacher_gap(tokens.teacher_logp_t, logp_t=logp_t, mask_t=tokens.mask_t)


@dataclass
class OPD:
    """OPD: A + c·d, or c·d alone."""

    distillation_coef: float = knob(1.0, number("finite and not 0", lambda x: x != 0.0 and FINITE.holds(x)))
    distillation_outcome: bool = knob(True)
    distillation_position: float = knob(0.0, NOT_NEGATIVE)
    distillation_student: str = knob("old", STUDENT)

    needs = ("teacher",)
    by_row = True

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        plain, gap_t = assign_credit(config, tokens), gap_of(tokens, student=self.distillation_student)
        gap_t = gap_t * position_weight(gap_t, gamma=self.distillation_position, mask_t=tokens.mask_t)
        outcome_t = wide(plain.advantage) if self.distillation_outcome else torch.zeros_like(gap_t)
        credit_t = outcome_t + self.distillation_coef * gap_t.nan_to_num(nan=0.0)
        return replace(plain, advantage=credit_t.to(plain.advantage.dtype))


CREDIT = f"{__name__}.OPD"


@settings_from(OPD)
@dataclass
class OPDConfig(GRPOConfig):
    r"""
    Configuration of [`OPDTrainer`]: [`GRPOConfig`] with a teacher's difference of log-probabilities in the advantage.

    The paper distills a larger model, and minimises a divergence over the whole vocabulary. As a policy gradient with
    the sampled token alone it is `distillation_outcome=False`, whose gradient is that of the k1 estimate of the reverse
    KL divergence. Name the larger model as `teacher`. The default, the reference model with the row's own prompt, is
    ours: it needs no second model, and then d is a penalty on the distance from the initial policy.

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.opd.OPD"`): this algorithm.
        teacher (`str`, *optional*, defaults to `"reference"`): the teacher's weights.
        distillation_coef (`float`, *optional*, defaults to `1.0`):
            The factor c of d, per nat (1 in slime).
        distillation_outcome (`bool`, *optional*, defaults to `True`):
            Whether the advantage of the outcome is added (slime, ms-swift). With `False` A is c·d, and 0 in rows
            without a context.
        distillation_position (`float`, *optional*, defaults to `0.0`):
            γ of IW-OPD's weight 1+γ·(1−Σ_{k<t}|d_k|/Σ_k|d_k|) (arXiv 2606.22600), which has 0.5. 0 means no weight.
        distillation_student (`str`, *optional*, defaults to `"old"`):
            The policy that d compares with: `"old"`, which sampled (slime, ms-swift), or the `"current"` one. They
            differ only with several updates per batch. IW-OPD in TRL has `"old"` with `behavior_logps="sampler"`.
    """

    RULES = (
        Rule({}, when(credit=CREDIT), "OPD is this object, whose method yours may call"),
        Rule({}, ANY_SIGN, "d has both signs in one response"),
        Rule(when(distillation_outcome=False), NO_OUTCOME, "the credit of the teacher alone reads no advantage"),
        TOKEN_RULE,
        WEIGHTED_RULE,
    )

    credit: str | None = CREDIT
    teacher: str | None = "reference"


PRESET = Preset(
    name="OPD",
    paper=PAPERS["2306.13649"],
    summary="a teacher's log-probability minus the policy's, added to the advantage of each token",
    formula="W = ℓ − ℓ°, A = group advantage + c · sg(ℓᵀ − ℓ°), M = all tokens",
    config=OPDConfig,
)
