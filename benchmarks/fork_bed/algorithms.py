"""Algorithms on the bed: their configurations, and the gradient of their loss by the package's own functions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from trl_credit.config import CreditConfig
from trl_credit.credit.advantages import group_advantage
from trl_credit.credit.difficulty import DifficultyBelief, batch_accuracy, difficulty_weight, group_accuracy
from trl_credit.credit.segments import cutpoint_boundaries, segment_advantages
from trl_credit.credit.selection import probability_mask, select_high_entropy
from trl_credit.credit.tokens import Credit, Tokens
from trl_credit.credit.weights import sequence_log_weight
from trl_credit.loss.assignment import assign_credit
from trl_credit.presets.opd import OPD
from trl_credit.presets.rlsd import RLSD

from .batch import Batch
from .bed import G, P, Setting
from .teachers import TEACHERS, Teacher


UNIT = (0.0, 1.0)
SURE = 0.9  # SPO's cutpoints and mask: tokens below this probability


@dataclass(frozen=True)
class Algorithm:
    """An algorithm.

    Attributes:
        label: Its name in tables.
        knobs: Knobs of [`CreditConfig`] beside GRPO's.
        values: "group" (advantages of responses), "steps" (VinePPO) or "cutpoints" (SPO-chain).
        scale: Whether group advantages are divided by their standard deviation.
        kept: Tokens that the loss keeps: "all", "top_20" or "forks".
        reference: Whether the selector reads the entropy of the policy that training began with.
        weighs_difficulty: HA-DW.
        updates: Updates per batch.
        teacher: The teacher, or `None`.
        assign: Credit from the configuration and the tokens, as a preset's object has it.
    """

    label: str
    knobs: dict[str, Any] = field(default_factory=dict)
    values: str = "group"
    scale: bool = True
    kept: str = "all"
    reference: bool = False
    weighs_difficulty: bool = False
    updates: int = 1
    teacher: Teacher | None = None
    assign: Callable[[CreditConfig, Tokens], Credit] = assign_credit

    @property
    def config(self) -> CreditConfig:
        """The configuration that the package's functions read."""
        return _config(tuple(sorted(self.knobs.items())))


@cache
def _config(knobs: tuple[tuple[str, Any], ...]) -> CreditConfig:
    return CreditConfig(output_dir="unused", report_to="none", bf16=False, use_cpu=True, **dict(knobs))


_TRACE = {"importance": "eligible"}
_S_TRACE = _TRACE | {"selector": "entropy"}
_LAMBDA = {"importance": "lambda_trace", "trace_lambda": 0.99}
_FLOOR = {"advantage_floor": -0.1}
_SPO = {"scale_rewards": "none"}
_TAUGHT = {
    "rlsd": ("RLSD", RLSD(evidence_steps=None)),
    "rlsd_60": ("RLSD, μ falls to 0", RLSD()),
    "rlsd_wide": ("RLSD, μ = 1, ε = 0.9", RLSD(evidence_share=1.0, evidence_clip=0.9, evidence_steps=None)),
    "opd": ("OPD, c = 1", OPD()),
    "opd_tenth": ("OPD, c = 0.1", OPD(distillation_coef=0.1)),
    "opd_alone": ("OPD without outcome", OPD(distillation_outcome=False)),
}

ALGORITHMS = {
    "grpo": Algorithm("GRPO"),
    "s_trace": Algorithm("S-trace", _S_TRACE),
    "s_trace_99": Algorithm("S-trace, λ = 0.99", _S_TRACE | {"trace_lambda": 0.99}),
    "reference": Algorithm("S-trace, z by the initial policy's entropy", _S_TRACE, reference=True),
    "random": Algorithm("S-trace, random selector", _TRACE | {"selector": "random"}),
    "p_trace": Algorithm("P-trace", _TRACE),
    "lambda": Algorithm("GRPO-λ, trace alone", _LAMBDA),
    "floor": Algorithm("GRPO with floor −0.1", _FLOOR),
    "lambda_floor": Algorithm("GRPO-λ, trace and floor", _LAMBDA | _FLOOR),
    "top_20": Algorithm("top 20 % by entropy", kept="top_20"),
    "dr_grpo": Algorithm("Dr. GRPO", _SPO, scale=False),
    "ha_dw": Algorithm("HA-DW", weighs_difficulty=True),
    "vine_ppo": Algorithm("VinePPO", _SPO, values="steps"),
    "spo_chain": Algorithm("SPO-chain", _SPO | {"token_mask": "probability"}, values="cutpoints"),
    "oracle": Algorithm("oracle: forks alone", kept="forks"),
    "grpo_4": Algorithm("GRPO, 4 updates per batch", updates=4),
    "dapo_4": Algorithm("clip-higher, 4 updates", {"epsilon_high": 0.28}, updates=4),
    "gspo_4": Algorithm(
        "GSPO, 4 updates", {"importance": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}, updates=4
    ),
    "gspo_wide_4": Algorithm("GSPO with ε = 0.2, 4 updates", {"importance": "sequence"}, updates=4),
    "lambda_4": Algorithm("GRPO-λ, trace alone, 4 updates", _LAMBDA, updates=4),
    "s_trace_4": Algorithm("S-trace, 4 updates", _S_TRACE, updates=4),
} | {
    f"{name}_{about}": Algorithm(label, teacher=teacher, assign=preset.credit)
    for about, teacher in TEACHERS.items()
    for name, (label, preset) in _TAUGHT.items()
}


class Advantages:
    """Advantages of one algorithm's batches; HA-DW's beliefs, one a run, are its state."""

    def __init__(self, algorithm: Algorithm, setting: Setting, *, runs: int) -> None:
        self.algorithm, self.setting = algorithm, setting
        self.beliefs = [DifficultyBelief() for _ in range(runs)] if algorithm.weighs_difficulty else []

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Advantages before the mask, shape (rows, 1) or (rows, T)."""
        if self.algorithm.values != "group":
            ones = torch.ones_like(batch.old_logp_t)
            bounds = boundaries(self.algorithm, self.setting, batch)
            return segment_advantages(batch.rollout_t, boundaries=bounds, final_value=batch.rewards, mask_t=ones)
        advantages = group_advantage(batch.rewards, num_generations=G, scale=self.algorithm.scale)
        if self.beliefs:
            advantages = advantages * self._difficulty(batch.rewards, advantages)
        if (floor := self.algorithm.config.advantage_floor) is not None:
            advantages = advantages.clamp(min=floor)
        return advantages.unsqueeze(1)

    def _difficulty(self, rewards: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        weights = []
        for belief, own, a in zip(self.beliefs, rewards.view(-1, P * G), advantages.view(-1, P * G), strict=True):
            p_hat = group_accuracy(own, num_generations=G, reward_range=UNIT).repeat_interleave(G)
            accuracy = batch_accuracy(own, reward_range=UNIT)
            weights.append(difficulty_weight(a, p_hat=p_hat, prior=belief.prior(accuracy), scale=1.3))
            belief.update(accuracy)
        return torch.cat(weights)


def boundaries(algorithm: Algorithm, setting: Setting, batch: Batch) -> torch.Tensor:
    """Where segments begin, bool, shape (rows, T)."""
    if algorithm.values == "steps":
        begins = torch.zeros_like(batch.old_logp_t, dtype=torch.bool)
        begins[:, setting.step_starts] = True
        return begins
    ones = torch.ones_like(batch.old_logp_t)
    return cutpoint_boundaries(batch.old_logp_t, threshold=SURE, interval=1, mask_t=ones)


def kept_tokens(algorithm: Algorithm, setting: Setting, batch: Batch) -> torch.Tensor:
    """M, zeros and ones, shape (rows, T)."""
    ones = torch.ones_like(batch.old_logp_t)
    if algorithm.config.token_mask == "probability":
        return probability_mask(batch.old_logp_t, threshold=SURE, mask_t=ones)
    if algorithm.kept == "forks":
        return torch.zeros_like(ones).index_fill_(1, setting.forks, 1.0)
    if algorithm.kept == "top_20":
        by_run = batch.entropy_t.view(len(batch.actions), -1)
        bound = by_run.quantile(0.8, dim=-1, keepdim=True)
        return (by_run >= bound).double().view_as(ones)
    return ones


def selector(algorithm: Algorithm, initial_entropy_t: torch.Tensor, uniform_t: torch.Tensor) -> Callable | None:
    """A selector that replaces the configuration's, or `None`: the reference's, or a random one with common numbers."""
    if algorithm.reference:
        return lambda entropy_t, *, rate, mask_t: select_high_entropy(initial_entropy_t, rate=rate, mask_t=mask_t)
    if algorithm.knobs.get("selector") == "random":
        return lambda entropy_t, *, rate, mask_t: (uniform_t < rate).to(mask_t.dtype)
    return None


def token_gradient(
    config: CreditConfig,
    batch: Batch,
    *,
    logp_t: torch.Tensor,
    advantages: torch.Tensor,
    kept_t: torch.Tensor,
    assign: Callable[[CreditConfig, Tokens], Credit] = assign_credit,
) -> torch.Tensor:
    """Gradient of min(ρA, clip(ρ)A)·M, divided by the response's normaliser, with respect to each ℓ_k, shape (rows, T).

    ρ = exp(W) with W and A of `assign`. The normaliser is the number of the tokens that SPO's mask keeps, else T.
    """
    logp_t = logp_t.detach().requires_grad_()
    ones = torch.ones_like(logp_t)
    zeros = torch.zeros_like(batch.actions.flatten(0, 2))
    tokens = Tokens(
        logp_t=logp_t,
        old_logp_t=batch.old_logp_t,
        entropy_t=batch.entropy_t,
        advantages=advantages,
        token_ids=batch.actions.flatten(0, 2),
        segment_ids=zeros,
        turn_ids=zeros,
        policy_mask_t=kept_t,
        teacher_logp_t=batch.teacher_logp_t,
        step=batch.step,
        mask_t=ones,
    )
    credit = assign(config, tokens)
    log_weight = credit.log_weight
    if log_weight is None:
        log_weight = logp_t - batch.old_logp_t
        if config.importance == "sequence":
            log_weight = sequence_log_weight(logp_t, old_logp_t=batch.old_logp_t, mask_t=ones)
    ratio = log_weight.exp()
    clipped = ratio.clamp(1 - config.epsilon, 1 + (config.epsilon_high or config.epsilon))
    objective = torch.minimum(ratio * credit.advantage, clipped * credit.advantage) * kept_t
    masked = config.token_mask == "probability"
    count = kept_t.sum(-1, keepdim=True).clamp(min=1) if masked else logp_t.size(1)
    return torch.autograd.grad((objective / count).sum(), logp_t)[0]
