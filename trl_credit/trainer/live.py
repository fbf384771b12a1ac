"""One micro-batch on its way through TRL's loss, and what a credit function is told of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..assignment import policy_mask
from ..config import CreditConfig
from ..credit.advantages import whiten
from ..credit.tokens import Credit, Tokens, turn_numbers
from .batches import loss_mask, segments_of, tokens_of


@dataclass
class LivePass:
    """One call of TRL's `_compute_loss`: the inputs it reads from, and how often it ran the forward hook.

    Attributes:
        config: Its advantage knobs and mask are read.
        inputs: A copy of TRL's dict, alive while the loss is computed.
        reduce: A collective call that adds a tensor over processes.
        micro_batches: Into how many the generation batch is cut, over all processes.
        hook_calls: Forward passes so far.
        extra_loss: A term that TRL's loss lacks, or `None`.
        seen: What the credit function was given, and returned.
        entropy_mask_t: Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T), or `None`.
    """

    config: CreditConfig
    inputs: dict[str, Any]
    reduce: Callable[[torch.Tensor], torch.Tensor]
    micro_batches: int = 1
    hook_calls: int = 0
    extra_loss: torch.Tensor | None = None
    seen: tuple[Tokens, Credit] | None = None
    entropy_mask_t: torch.Tensor | None = None

    @property
    def mask_t(self) -> torch.Tensor:
        """The tokens that the loss sees, shape (B, T)."""
        return loss_mask(self.inputs)

    @property
    def quarter_t(self) -> torch.Tensor | None:
        """Quarter of the response that each token lies in, shape (B, T), where a row is not a response."""
        return self.inputs.get("response_quarters")

    @property
    def row_weight(self) -> torch.Tensor | None:
        """Shape (B,), where the loss is an average over prompts."""
        return self.inputs.get("row_weight")

    @property
    def mean_tokens(self) -> torch.Tensor | None:
        """What TRL divides the sum over a micro-batch by where it counts the generation batch's tokens: a scalar."""
        count = self.inputs.get("num_items_in_batch")
        return None if count is None else count.clamp(min=1) / self.micro_batches

    def hide_masked(self) -> None:
        """Leaves what M leaves out out of the whole loss."""
        mask_t = self.mask_t
        self.inputs.setdefault("turn_ids", turn_numbers(mask_t))
        kept_t = known_policy_mask(
            self.config, self.inputs, old_logp_t=self.inputs["old_per_token_logps"], mask_t=mask_t
        )
        self.inputs["tool_mask"] = self.inputs["policy_mask"] = kept_t

    def tokens(self, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> Tokens:
        """What is known of each token now that the forward pass has run. Whitening by micro-batch is collective."""
        inputs, config, mask_t = self.inputs, self.config, self.mask_t
        old_logp_t = inputs.get("old_per_token_logps")
        old_logp_t = logp_t.detach() if old_logp_t is None else old_logp_t
        kept_t = known_policy_mask(config, inputs, old_logp_t=old_logp_t, mask_t=mask_t)
        advantages = inputs["advantages"]
        if config.whiten_advantages == "microbatch":
            advantages = whitened(advantages, kept_t, mask_t, reduce=self.reduce)
        if config.advantage_floor is not None:  # the last of what is done to them, and done once
            advantages = advantages.clamp(min=config.advantage_floor)
        return tokens_of(
            inputs,
            logp_t=logp_t,
            old_logp_t=old_logp_t,
            entropy_t=entropy_t,
            advantages=advantages,
            policy_mask_t=kept_t,
            mask_t=mask_t,
        )


def known_policy_mask(
    config: CreditConfig, inputs: dict[str, Any], *, old_logp_t: torch.Tensor | None, mask_t: torch.Tensor
) -> torch.Tensor:
    """M of a batch, which travels with it; made anew where it could not be made before the loss, for want of π_old."""
    if (known := inputs.get("policy_mask")) is not None:
        return known
    return policy_mask(config, old_logp_t=old_logp_t, segment_ids=segments_of(inputs, mask_t), mask_t=mask_t)


def whitened(
    advantages: torch.Tensor,
    kept_t: torch.Tensor,
    mask_t: torch.Tensor,
    *,
    reduce: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Advantages (B,) or (B, T) with mean 0 and variance 1 over the kept tokens of all processes, shape (B, T)."""
    kept_t = kept_t if kept_t.any() else mask_t
    advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_t.shape)
    return whiten(advantages, mask_t=kept_t, reduce=reduce)
