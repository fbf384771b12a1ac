"""How TRL divides the loss of each `loss_type`, and what a mask M changes of that: the one home of these rules."""

import torch

from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens


# what TRL divides the sum over a response's tokens, or over those of a micro-batch, by
_DIVISOR = {
    "grpo": "row",  # its loss tokens, then the mean over rows
    "sapo": "row",
    "bnpo": "microbatch",  # its loss tokens
    "dapo": "batch",  # `num_items_in_batch`, counted over all processes
    "cispo": "batch",
    "vespo": "batch",
    "dr_grpo": "constant",  # `max_completion_length`
    "luspo": "constant",  # 1
}


class Normalizer:
    """The rules of one `loss_type`. All methods are pure; all tensors are of shape (B, T) unless said otherwise.

    Args:
        config ([`CreditConfig`]):
            Its loss type, mask normaliser and KL knobs are read, anew in every call.
    """

    def __init__(self, config: CreditConfig) -> None:
        self.config = config

    @property
    def counts_batch(self) -> bool:
        """Whether TRL divides by `num_items_in_batch`, which must then be the number of tokens that M keeps."""
        return _DIVISOR[self.config.loss_type] == "batch"

    @property
    def hides_masked(self) -> bool:
        """Whether TRL's loss must not see what M leaves out, its KL term included (SPO's released code)."""
        return self.config.token_mask != "none" and self.config.mask_normalizer == "code"

    @property
    def needs_mask_early(self) -> bool:
        """Whether M must be known before the forward pass of the loss."""
        return self.counts_batch or self.hides_masked

    def advantage(self, credit: Credit, tokens: Tokens) -> torch.Tensor:
        """A as TRL is to see it: 0 where M is 0, times what turns TRL's mean into one over the tokens that M keeps.

        min(ρA, clip(ρ)A) scales with A by any factor ≥ 0, so the factor may sit on the advantage. A function's own M
        (`credit.mask`) zeroes terms and moves no normaliser; that which was known before the loss does.
        """
        advantage = credit.advantage if credit.advantage.dim() == 2 else credit.advantage.unsqueeze(1)
        if credit.mask is None and tokens.policy_mask_t is tokens.mask_t:
            return advantage
        kept = tokens.policy_mask_t.bool()
        if credit.mask is not None:
            kept = kept & credit.mask.bool()
        # where, not a product: what M leaves out may hold anything
        return torch.where(kept, advantage * self._ratio(tokens), 0.0)

    def missing_kl(self, credit: Credit, tokens: Tokens, *, beta: float) -> torch.Tensor | None:
        """What TRL's KL term lacks to be β Σ_t k3_t / Σ_t M_t over all loss tokens (SPO, Eq. 3): a scalar, or `None`.

        TRL divides it by the number of all loss tokens where it normalises by row or micro-batch. The losses that
        divide by `num_items_in_batch` have that number recounted and lack nothing.
        """
        divisor = _DIVISOR[self.config.loss_type]
        if beta == 0.0 or self.config.token_mask == "none" or self.hides_masked or divisor in ("batch", "constant"):
            return None
        mask_t, kept_t = tokens.mask_t, tokens.policy_mask_t
        difference = tokens.ref_logp_t - tokens.logp_t
        kl_t = (difference.exp() - difference - 1) * mask_t
        if self.config.use_bias_correction_kl:
            weight = tokens.logp_t - tokens.old_logp_t if credit.log_weight is None else credit.log_weight
            kl_t = kl_t * weight.exp()
        if divisor == "microbatch":
            kl, n_all, n_kept = kl_t.sum(), mask_t.sum(), kept_t.sum()
        else:
            kl, n_all, n_kept = kl_t.sum(-1), mask_t.sum(-1), kept_t.sum(-1)
        return beta * (kl / n_kept.clamp(min=1) - kl / n_all.clamp(min=1)).mean()

    def divisor(
        self, tokens: Tokens, *, items: torch.Tensor, accumulation: int, processes: int
    ) -> torch.Tensor | float:
        """What TRL's training loss and the factor of `advantage` together divide −A·exp(W) of a token by.

        Args:
            items (`torch.Tensor`):
                `num_items_in_batch`, a scalar.
            accumulation (`int`):
                Micro-batches of the optimizer step.
            processes (`int`):
                Of the run.

        Returns:
            `torch.Tensor` or `float`: shape (B, 1), or a scalar.
        """
        config, rows, kept_t = self.config, tokens.mask_t.size(0), tokens.policy_mask_t
        divisor = _DIVISOR[config.loss_type]
        if divisor == "batch":
            return items.clamp(min=1) / processes * accumulation / config.steps_per_generation
        if divisor == "microbatch":
            return kept_t.sum().clamp(min=1) * accumulation
        if divisor == "row":
            return kept_t.sum(-1, keepdim=True).clamp(min=1) * rows * accumulation
        return rows * accumulation * (config.max_completion_length if config.loss_type == "dr_grpo" else 1)

    def _ratio(self, tokens: Tokens) -> torch.Tensor | float:
        """Loss tokens for each kept one, where TRL divides by the former: (B, 1), a scalar, or 1."""
        divisor = _DIVISOR[self.config.loss_type]
        if divisor == "row":
            return tokens.mask_t.sum(-1, keepdim=True) / tokens.policy_mask_t.sum(-1, keepdim=True).clamp(min=1)
        if divisor == "microbatch":
            return tokens.mask_t.sum() / tokens.policy_mask_t.sum().clamp(min=1)
        return 1.0  # recounted, or no count of tokens
