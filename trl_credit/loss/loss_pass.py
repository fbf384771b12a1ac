"""One micro-batch in TRL's loss, and the `Tokens` that a credit function gets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..config import CreditConfig
from ..credit.gradient import PolicyTerm, kl_credit, token_credit
from ..credit.tokens import Credit, Tokens, kept_tokens, turn_numbers, wide
from ..support.digests import seed_from
from . import keys
from .assignment import in_clip_form, log_weight_of, policy_mask
from .batch import loss_mask, segments_of
from .contract import Contract
from .normalizer import turn_factor
from .order import in_loss


@dataclass
class LossPass:
    """One call of TRL's loss.

    Attributes:
        config: The run's knobs.
        contract: The run's algorithm.
        inputs: A copy of TRL's dict, from which TRL's loss reads.
        reduce: Sums a tensor over processes. Collective.
        micro_batches: Number of micro-batches of the generation batch, over all processes.
        place: Optimizer step, number of the micro-batch in it, and rank: with the run's seed they seed what draws.
        hook_calls: Number of forward passes.
        extra_loss: A term to add to TRL's loss, or `None`.
        seen: Argument and result of the credit function.
        unmasked: `logp_t`, `entropy_t` and the inputs as they were before [`finite_outside`].
        eos_probs: π(EOS) at each token under the current policy, shape (B, T), for `td_upper_bound`.
        hidden_t: The last layer's states, shape (B, T, H), for an algorithm that needs them.
        entropy_mask_t: Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T), or `None`.
        off_policy_mask_t: Rows that TRL's `off_policy_mask_threshold` keeps, shape (B, 1) or (B, T), or `None`.
    """

    config: CreditConfig
    contract: Contract
    inputs: dict[str, Any]
    reduce: Callable[[torch.Tensor], torch.Tensor]
    micro_batches: int = 1
    place: tuple[int, ...] = ()
    hook_calls: int = 0
    extra_loss: torch.Tensor | None = None
    seen: tuple[Tokens, Credit] | None = None
    unmasked: dict[str, Any] = field(default_factory=dict)
    eos_probs: torch.Tensor | None = None
    hidden_t: torch.Tensor | None = None
    entropy_mask_t: torch.Tensor | None = None
    off_policy_mask_t: torch.Tensor | None = None

    @property
    def mask_t(self) -> torch.Tensor:
        """The tokens that the loss sees, shape (B, T)."""
        return loss_mask(self.inputs)

    @property
    def row_weight(self) -> torch.Tensor | None:
        """Weight of each row, shape (B,), where the loss is an average over prompts; else `None`."""
        return self.inputs.get(keys.ROW_WEIGHT)

    @property
    def mean_tokens(self) -> torch.Tensor | None:
        """Mean number of loss tokens of a micro-batch, a scalar, where TRL divides by that of the generation batch."""
        count = self.inputs.get(keys.NUM_ITEMS)
        return None if count is None else count.clamp(min=1) / self.micro_batches

    @cached_property
    def credit_t(self) -> torch.Tensor:
        """The credit of each token in this loss, shape (B, T): see [`~trl_credit.credit.gradient.token_credit`]."""
        masks = [x for x in (self.entropy_mask_t, self.off_policy_mask_t) if x is not None]
        return policy_credit(self.config, *self.seen, factors=masks, engine_ratio_t=self.inputs.get(keys.ENGINE_RATIO))

    @property
    def kl_credit_t(self) -> torch.Tensor | None:
        """What the KL term gives each token, before it is divided, shape (B, T); `None` without that term."""
        tokens, credit = self.seen
        if self.config.beta == 0.0 or self.contract.algorithm.replaces_kl:
            return None
        counted_t, zero_variance = tokens.mask_t, self.inputs.get(keys.ZERO_VARIANCE_ROW)
        others = self.row_weight is not None or self.config.uses_released_code("spo_normalizer")
        if not others and (turn_factor_t := turn_factor(self.config, tokens)) is not None:
            counted_t = counted_t * turn_factor_t  # the others divide the KL term without turns
        counted_t = counted_t if zero_variance is None else counted_t * (~zero_variance).unsqueeze(1)
        weight_t = log_weight_of(self.config, credit, tokens) if self.config.use_bias_correction_kl else None
        beta, ref_logp_t = self.config.beta, tokens.ref_logp_t
        return kl_credit(weight_t, logp_t=tokens.logp_t, ref_logp_t=ref_logp_t, beta=beta, mask_t=counted_t)

    def hide_masked(self) -> None:
        """Hides the tokens outside of M from the whole loss."""
        mask_t = self.mask_t
        self.inputs.setdefault(keys.TURN_IDS, turn_numbers(mask_t))
        kept_t = known_policy_mask(self.config, self.inputs, old_logp_t=self.inputs[keys.OLD_LOGPS], mask_t=mask_t)
        self.inputs[keys.TOOL_MASK] = self.inputs[keys.POLICY_MASK] = kept_t

    def finite_outside(self, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of the forward pass, here and in the inputs 0 outside of the loss: TRL takes
        exponentials at every token, and NaN or infinity times a mask of 0 is NaN."""
        inputs, outside = self.inputs, self.mask_t == 0
        self.unmasked = {"logp_t": logp_t, "entropy_t": entropy_t.detach()} | inputs
        for key in inputs.keys() & {keys.OLD_LOGPS, keys.REF_LOGPS, keys.SAMPLING_LOGPS, keys.ENGINE_RATIO}:
            if inputs[key] is not None and inputs[key].shape == outside.shape:  # not a ratio per sequence
                # VESPO takes the logarithm of the engine's ratio at every token
                inputs[key] = inputs[key].masked_fill(outside, float(key == keys.ENGINE_RATIO))
        return logp_t.masked_fill(outside, 0.0), entropy_t.masked_fill(outside, 0.0)

    def tokens(self, *, logp_t: torch.Tensor, entropy_t: torch.Tensor, is_training: bool = True) -> Tokens:
        """The argument of the credit function, after the forward pass. Whitening by micro-batch is collective."""
        inputs, config, mask_t, needs = self.inputs, self.config, self.mask_t, self.contract.algorithm.needs
        if "entropy_gradient" in needs and logp_t.requires_grad and not entropy_t.requires_grad:
            what = f"credit={config.credit!r} needs entropies with a gradient, which the installed trl lacks"
            raise ValueError(f"{what}: set entropy_coef to a small number such as 1e-12, or install trl>=1.16.")
        old_logp_t, turn_ids = inputs.get(keys.OLD_LOGPS), inputs.get(keys.TURN_IDS)
        segment_ids = segments_of(inputs, mask_t)
        if turn_ids is None:  # without tools a response is one turn, and without segments one segment
            turn_ids = turn_numbers(mask_t) if keys.TOOL_MASK in inputs or keys.SEGMENT_IDS in inputs else segment_ids
        old_logp_t = logp_t.detach() if old_logp_t is None else old_logp_t
        kept_t = known_policy_mask(config, inputs, old_logp_t=old_logp_t, mask_t=mask_t)
        floating = mask_t.to(torch.promote_types(logp_t.dtype, torch.float32))
        ref_logp_t, zero_variance = inputs.get(keys.REF_LOGPS), inputs.get(keys.ZERO_VARIANCE_ROW)
        if zero_variance is not None:  # for TRL alone: with π_ref = π the KL term of these rows, and its gradient, is 0
            inputs[keys.REF_LOGPS] = torch.where(zero_variance.unsqueeze(1), logp_t, ref_logp_t)
        tokens = Tokens(
            # in evaluation a leaf, so that credit is computed there as in training
            logp_t=logp_t if logp_t.requires_grad else logp_t.detach().requires_grad_(),
            old_logp_t=old_logp_t,
            ref_logp_t=ref_logp_t,
            sampling_logp_t=inputs.get(keys.SAMPLING_LOGPS),
            entropy_t=entropy_t if "entropy_gradient" in needs else entropy_t.detach(),
            ref_entropy_t=inputs.get(keys.REF_ENTROPIES),
            statistics_t=inputs.get(keys.STATISTICS),
            hidden_t=self.hidden_t,
            teacher_logp_t=inputs.get(keys.TEACHER_LOGPS),
            step=self.place[0] if self.place else 0,
            is_training=is_training,
            seed=seed_from(config.seed, *self.place),
            advantages=inputs[keys.ADVANTAGES],
            token_ids=inputs[keys.COMPLETION_IDS],
            segment_ids=segment_ids,
            turn_ids=turn_ids,
            policy_mask_t=floating if kept_t is mask_t else kept_t.to(floating.dtype),
            mask_t=floating,
        )
        return in_loss(config, tokens, eos_probs=self.eos_probs, reduce=self.reduce)


def policy_credit(
    config: CreditConfig,
    tokens: Tokens,
    credit: Credit,
    *,
    factors: Sequence[torch.Tensor] = (),
    engine_ratio_t: torch.Tensor | None = None,
) -> torch.Tensor:
    """The credit of each token, shape (B, T), of what an algorithm returned for `tokens`, in the loss of `config`.

    The training loss, `explain` and the checks of an algorithm take their credit from here.

    Args:
        factors (sequence of `torch.Tensor`, *optional*):
            What the loss multiplies a token by besides M and `turn_average`, each of shape (B, T) or (B, 1).
        engine_ratio_t (`torch.Tensor`, *optional*):
            TRL's correction for the engine, shape (B, T) or (B, 1).
    """
    used, factors = in_clip_form(config, credit, tokens), [*factors]
    log_weight_t, is_vespo = log_weight_of(config, used, tokens), config.loss_type == "vespo"
    if engine_ratio_t is not None and is_vespo:  # whose ratio is that to the engine
        log_weight_t = log_weight_t + engine_ratio_t.log().clamp(min=math.log(1e-8))
    elif engine_ratio_t is not None:
        factors.append(engine_ratio_t)
    if (turn_factor_t := turn_factor(config, tokens)) is not None:
        factors.append(turn_factor_t)
    return token_credit(
        log_weight_t,
        logp_t=tokens.logp_t,
        advantage_t=wide(used.advantage),
        term=PolicyTerm(
            loss_type=config.loss_type,
            clip_range=config.clip_range,
            delta=config.delta,
            temperatures=(config.sapo_temperature_pos, config.sapo_temperature_neg),
            gammas=((config.vespo_k_pos, config.vespo_lambda_pos), (config.vespo_k_neg, config.vespo_lambda_neg)),
        ),
        factor_t=math.prod(factors) if factors else None,
        kept_t=kept_tokens(credit, tokens),
        mask_t=tokens.mask_t,
    )


def known_policy_mask(
    config: CreditConfig, inputs: dict[str, Any], *, old_logp_t: torch.Tensor | None, mask_t: torch.Tensor
) -> torch.Tensor:
    """M of a batch: the one stored in it, or else made now."""
    if (known := inputs.get(keys.POLICY_MASK)) is not None:
        return known
    return policy_mask(config, old_logp_t=old_logp_t, segment_ids=segments_of(inputs, mask_t), mask_t=mask_t)
