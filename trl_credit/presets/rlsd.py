"""RLSD (arXiv 2604.03128): the outcome gives the direction, and a teacher that knows the answer the size.

To imitate a teacher that is told the answer teaches the policy to hint at what it cannot see. RLSD takes the sign of
each update from the reward alone. The teacher, a copy of the policy that sees the reference answer, scales a token's
advantage by a factor between 0.9 and 1.1: tokens weigh more where knowing the answer speaks for the outcome. No token
is pushed against the reward.

Use it when: the data has reference answers, and the model follows what its prompt says
Costs: one forward pass per batch, without a gradient; a copy of the trained weights
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..config import CreditConfig
from ..config.algorithm import settings_from
from ..config.knobs import COUNT, SHARE, knob, number, when
from ..config.rules import WEIGHTED_RULE, Rule
from ..credit.teacher import evidence_factor
from ..credit.tokens import Credit, Tokens, wide
from ..loss.assignment import assign_credit
from .grpo import GRPOConfig
from .opd import STUDENT, TOKEN_RULE, gap_of
from .preset import PAPERS, Preset


@dataclass
class RLSD:
    """RLSD: A·f, where f reads d and falls back to 1 over the first steps of a run."""

    evidence_share: float = knob(0.5, SHARE)
    evidence_clip: float = knob(0.2, number("in [0, 1)", lambda x: 0.0 <= x < 1.0))
    evidence_steps: int | None = knob(60, COUNT)
    evidence_negative_only: bool = knob(False)
    distillation_student: str = knob("current", STUDENT)

    needs = ("teacher",)
    by_row = True

    def share(self, step: int) -> float:
        """μ in an optimizer step, counted from 0."""
        return self.evidence_share * (1.0 if self.evidence_steps is None else max(0.0, 1 - step / self.evidence_steps))

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        plain, gap_t = assign_credit(config, tokens), gap_of(tokens, student=self.distillation_student)
        advantage_t = wide(plain.advantage)
        sizes = {"advantage_t": advantage_t.detach(), "share": self.share(tokens.step), "clip": self.evidence_clip}
        factor_t = evidence_factor(gap_t, **sizes).to(advantage_t.dtype)
        if self.evidence_negative_only:
            factor_t = torch.where(advantage_t > 0, 1.0, factor_t)
        return replace(plain, advantage=advantage_t * factor_t)

    def metrics(self, config: CreditConfig, tokens: Tokens, credit: Credit) -> Mapping[str, torch.Tensor]:
        """Share of the loss tokens whose factor is at a bound, and μ."""
        gap_t, advantage_t = gap_of(tokens, student=self.distillation_student), wide(tokens.advantages)
        # never where d is NaN
        clipped_t = (torch.exp(torch.sign(advantage_t) * gap_t) - 1).abs() >= self.evidence_clip
        of_row = torch.full_like(advantage_t[:, 0], self.share(tokens.step))
        return {"teacher/clipped_factors": clipped_t, "teacher/evidence_share": of_row}


CREDIT = f"{__name__}.RLSD"


@settings_from(RLSD)
@dataclass
class RLSDConfig(GRPOConfig):
    r"""
    Configuration of [`RLSDTrainer`]: [`GRPOConfig`] with the published setting.

    f = (1 − μ) + μ·clip(exp(sgn(A)·d), 1 − ε, 1 + ε) multiplies the advantage of each token. The paper trains with 256
    prompts, 8 responses each of at most 4,096 tokens. Its wording of the context is not known to us: `teacher_prompt`
    is ours, and reads the column `answer`.

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.rlsd.RLSD"`): this algorithm.
        epsilon_high (`float`, *optional*, defaults to `0.28`): upper clip range.
        teacher (`str`, *optional*, defaults to `"policy"`): the teacher's weights.
        teacher_sync_steps (`int`, *optional*, defaults to `20`): optimizer steps after which they are copied anew.
        teacher_prompt (`str`, *optional*, defaults to `"{prompt}\n\nThe reference answer is {answer}."`): its context.
        evidence_share (`float`, *optional*, defaults to `0.5`):
            μ in [0, 1] at the start of the run (the paper's λ). 0 is GRPO.
        evidence_clip (`float`, *optional*, defaults to `0.2`):
            ε in [0, 1). exp(sgn(A)·d) is clipped to 1 ± ε.
        evidence_steps (`int`, *optional*, defaults to `60`):
            Optimizer steps over which μ falls linearly to 0, also across a resume. `None` keeps μ.
        evidence_negative_only (`bool`, *optional*, defaults to `False`):
            Whether responses with A > 0 keep their advantage.
        distillation_student (`str`, *optional*, defaults to `"current"`):
            The policy that d compares with: the `"current"` one (released code), or `"old"`, which sampled (ms-swift).
    """

    RULES = (
        Rule({}, when(credit=CREDIT), "RLSD is this object, whose method yours may call"),
        TOKEN_RULE,
        WEIGHTED_RULE,
    )

    credit: str | None = CREDIT
    epsilon_high: float | None = 0.28
    teacher: str | None = "policy"
    teacher_sync_steps: int | None = 20
    teacher_prompt: str | None = "{prompt}\n\nThe reference answer is {answer}."


PRESET = Preset(
    name="RLSD",
    paper=PAPERS["2604.03128"],
    summary="advantages scaled by what a copy of the policy that is told the answer finds probable",
    formula="W = ℓ − ℓ°, A = group advantage · sg((1 − μ) + μ clip(exp(sgn(A)(ℓᵀ − ℓ)), 0.8, 1.2)), M = all tokens",
    config=RLSDConfig,
)
