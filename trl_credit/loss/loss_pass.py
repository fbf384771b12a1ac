"""One micro-batch in TRL's loss, and the `Tokens` that a credit function gets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..config import CreditConfig
from ..credit.advantages import td_upper_bound, whiten
from ..credit.tokens import Credit, Tokens, turn_numbers
from ..support.digests import seed_from
from . import keys
from .assignment import policy_mask, wide
from .batch import loss_mask, segments_of
from .metrics import expert_drift, loss_statistics


@dataclass
class LossPass:
    """One call of TRL's `_compute_loss`.

    Attributes:
        config: The run's knobs.
        inputs: A copy of TRL's dict, from which TRL's loss reads.
        reduce: Sums a tensor over processes. Collective.
        micro_batches: Number of micro-batches of the generation batch, over all processes.
        place: Optimizer step, number of the micro-batch in it, and rank: with the run's seed they seed what draws.
        hook_calls: Number of forward passes.
        extra_loss: A term to add to TRL's loss, or `None`.
        seen: Argument and result of the credit function.
        unmasked: `logp_t`, `entropy_t` and the inputs as they were before [`finite_outside`].
        eos_probs: π(EOS) at each token under the current policy, shape (B, T), for `td_upper_bound`.
        experts_t: The experts of each token and layer, shape (B, T, layers, k), for `expert_drift`.
        entropy_mask_t: Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T), or `None`.
    """

    config: CreditConfig
    inputs: dict[str, Any]
    reduce: Callable[[torch.Tensor], torch.Tensor]
    micro_batches: int = 1
    place: tuple[int, ...] = ()
    hook_calls: int = 0
    extra_loss: torch.Tensor | None = None
    seen: tuple[Tokens, Credit] | None = None
    unmasked: dict[str, Any] = field(default_factory=dict)
    eos_probs: torch.Tensor | None = None
    experts_t: torch.Tensor | None = None
    entropy_mask_t: torch.Tensor | None = None

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

    def statistics(
        self, carries_loss: bool, *, clip_range: tuple[float, float], in_detail: bool
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Numerator and denominator of each metric, once TRL's loss is known: [`loss_statistics`], and `expert_drift`
        if the experts are known."""
        tokens, credit = self.seen
        how = {"quarter_t": self.inputs.get(keys.QUARTERS), "entropy_mask_t": self.entropy_mask_t}
        how |= {"carries_loss": carries_loss, "clip_range": clip_range, "in_detail": in_detail}
        found = loss_statistics(self.config, credit, tokens, **how)
        if self.experts_t is not None:
            old_t = self.inputs[keys.OLD_EXPERTS]
            found["expert_drift"] = expert_drift(self.experts_t, old_experts_t=old_t, mask_t=self.mask_t)
        return found

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
                inputs[key] = inputs[key].masked_fill(outside, 0.0)
        return logp_t.masked_fill(outside, 0.0), entropy_t.masked_fill(outside, 0.0)

    def tokens(self, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> Tokens:
        """The argument of the credit function, after the forward pass. Whitening by micro-batch is collective."""
        inputs, config, mask_t = self.inputs, self.config, self.mask_t
        old_logp_t, turn_ids = inputs.get(keys.OLD_LOGPS), inputs.get(keys.TURN_IDS)
        segment_ids = segments_of(inputs, mask_t)
        if turn_ids is None:  # without tools a response is one turn, and without segments one segment
            has_parts = keys.TOOL_MASK in inputs or keys.SEGMENT_IDS in inputs
            turn_ids = turn_numbers(mask_t) if has_parts else segment_ids
        old_logp_t = logp_t.detach() if old_logp_t is None else old_logp_t
        kept_t = known_policy_mask(config, inputs, old_logp_t=old_logp_t, mask_t=mask_t)
        advantages = inputs[keys.ADVANTAGES]
        if config.whiten_advantages == "microbatch":
            advantages = whiten(advantages, mask_t=kept_t if kept_t.any() else mask_t, reduce=self.reduce)
        if config.td_upper_bound:
            advantages = wide(advantages) + td_upper_bound(self.eos_probs.masked_fill(turn_ids < 0, 0.0))
        if config.advantage_floor is not None:  # once, after all other changes of the advantages
            advantages = advantages.clamp(min=config.advantage_floor)
        floating = mask_t.to(torch.promote_types(logp_t.dtype, torch.float32))
        ref_logp_t, dull = inputs.get(keys.REF_LOGPS), inputs.get(keys.DULL_ROW)
        if dull is not None:  # for TRL alone: with π_ref = π the KL term of these rows, and its gradient, is 0
            inputs[keys.REF_LOGPS] = torch.where(dull.unsqueeze(1), logp_t, ref_logp_t)
        return Tokens(
            logp_t=logp_t,
            old_logp_t=old_logp_t,
            ref_logp_t=ref_logp_t,
            sampling_logp_t=inputs.get(keys.SAMPLING_LOGPS),
            entropy_t=entropy_t.detach(),
            ref_entropy_t=inputs.get(keys.REF_ENTROPIES),
            statistics_t=inputs.get(keys.STATISTICS),
            seed=seed_from(config.seed, *self.place),
            advantages=advantages,
            token_ids=inputs[keys.COMPLETION_IDS],
            segment_ids=segment_ids,
            turn_ids=turn_ids,
            policy_mask_t=floating if kept_t is mask_t else kept_t.to(floating.dtype),
            mask_t=floating,
        )


def known_policy_mask(
    config: CreditConfig, inputs: dict[str, Any], *, old_logp_t: torch.Tensor | None, mask_t: torch.Tensor
) -> torch.Tensor:
    """M of a batch: the one stored in it, or else made now."""
    if (known := inputs.get(keys.POLICY_MASK)) is not None:
        return known
    return policy_mask(config, old_logp_t=old_logp_t, segment_ids=segments_of(inputs, mask_t), mask_t=mask_t)
