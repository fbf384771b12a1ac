"""How TRL divides the loss of each `loss_type`, and what a mask M or an average over prompts changes of that.

The one home of these rules.
"""

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

    def advantage(self, credit: Credit, tokens: Tokens, *, row_weight: torch.Tensor | None = None) -> torch.Tensor:
        """A as TRL is to see it: 0 where M is 0, times what turns TRL's mean into one over the tokens that M keeps, and
        `row_weight` (B,), that of [`prompt_weights`].

        min(ρA, clip(ρ)A) scales with A by any factor ≥ 0, so the factor may sit on the advantage. A function's own M
        (`credit.mask`) zeroes terms and moves no normaliser; that which was known before the loss does.
        """
        advantage = credit.advantage if credit.advantage.dim() == 2 else credit.advantage.unsqueeze(1)
        if row_weight is not None:
            advantage = advantage * row_weight.unsqueeze(1)
        if credit.mask is None and tokens.policy_mask_t is tokens.mask_t:
            return advantage
        kept = tokens.policy_mask_t.bool()
        if credit.mask is not None:
            kept = kept & credit.mask.bool()
        # where, not a product: what M leaves out may hold anything
        return torch.where(kept, advantage * self._ratio(tokens), 0.0)

    def missing_kl(
        self,
        credit: Credit,
        tokens: Tokens,
        *,
        beta: float,
        mean_tokens: torch.Tensor | None,
        row_weight: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """What TRL's KL term of a micro-batch lacks to be the one that is wanted: a scalar, or `None`.

        Wanted is, k3_t being what TRL adds up: β Σ_t k3_t / Σ_t M_t, in the numerator all loss tokens, divided as the
        policy term is (SPO, Eq. 3 and 4), and 0 where M leaves nothing to divide by; with `mask_normalizer="code"` the
        mean over rows of β Σ_t M_t k3_t. Losses that divide by `num_items_in_batch` have that number recounted, and
        lack nothing of the former.

        Args:
            mean_tokens (`torch.Tensor` or `None`):
                A scalar: tokens that M keeps in a micro-batch of one process, on average over the generation batch.
                Read where the loss counts these.
            row_weight (`torch.Tensor`, *optional*):
                Shape (B,), as for [`advantage`].
        """
        divisor = _DIVISOR[self.config.loss_type]
        as_trl = self.config.token_mask == "none" or divisor in ("batch", "constant")
        if beta == 0.0 or (as_trl and not self.hides_masked and row_weight is None):
            return None
        mask_t, kept_t = tokens.mask_t, tokens.policy_mask_t
        difference = tokens.ref_logp_t - tokens.logp_t
        kl_t = (difference.exp() - difference - 1) * mask_t
        if self.config.use_bias_correction_kl:
            weight = tokens.logp_t - tokens.old_logp_t if credit.log_weight is None else credit.log_weight
            kl_t = kl_t * weight.exp()
        kl = kl_t.sum(-1)
        if self.hides_masked:  # where mask_t is M
            wanted = kl.mean()
        elif row_weight is not None:
            wanted = (row_weight * kl).sum() / mean_tokens
        else:
            wanted = self._divided(kl, kept_t, mean_tokens)
        return beta * (wanted - self._divided(kl, mask_t, mean_tokens))

    def _divided(self, rows: torch.Tensor, counted_t: torch.Tensor, mean_tokens: torch.Tensor | None) -> torch.Tensor:
        """Sums over the tokens of each row, shape (B,), as TRL makes one number of them, counting `counted_t`."""
        divisor = _DIVISOR[self.config.loss_type]
        if divisor in ("row", "microbatch"):
            count = counted_t.sum(-1)
            if divisor == "microbatch":
                return torch.where(count.sum() > 0, rows.sum() / count.sum().clamp(min=1), 0.0)
            return torch.where(count > 0, rows / count.clamp(min=1), 0.0).mean()
        if divisor == "batch":
            return rows.sum() / mean_tokens
        return rows.mean() / (self.config.max_completion_length if self.config.loss_type == "dr_grpo" else 1)

    def divisor(
        self,
        tokens: Tokens,
        *,
        items: torch.Tensor,
        accumulation: int,
        processes: int,
        row_weight: torch.Tensor | None = None,
    ) -> torch.Tensor | float:
        """What TRL's training loss and the factor of `advantage` together divide −A·exp(W) of a token by.

        Args:
            items (`torch.Tensor`):
                `num_items_in_batch`, a scalar.
            accumulation (`int`):
                Micro-batches of the optimizer step.
            processes (`int`):
                Of the run.
            row_weight (`torch.Tensor`, *optional*):
                As for [`advantage`]. Rows of weight 0 have no gradient to be divided.

        Returns:
            `torch.Tensor` or `float`: shape (B, 1), or a scalar.
        """
        config, rows, kept_t = self.config, tokens.mask_t.size(0), tokens.policy_mask_t
        divisor = _DIVISOR[config.loss_type]
        if divisor == "batch":
            mean = items.clamp(min=1) / processes * accumulation / config.steps_per_generation
            return mean if row_weight is None else mean / row_weight.where(row_weight > 0, 1.0).unsqueeze(1)
        if divisor == "microbatch":
            return kept_t.sum().clamp(min=1) * accumulation
        if divisor == "row":
            return kept_t.sum(-1, keepdim=True).clamp(min=1) * rows * accumulation
        return rows * accumulation * (config.max_completion_length if config.loss_type == "dr_grpo" else 1)

    def kl_factor(
        self,
        tokens: Tokens,
        divisor: torch.Tensor | float,
        *,
        accumulation: int,
        row_weight: torch.Tensor | None = None,
    ) -> torch.Tensor | float:
        """What β·k3_t of a token is multiplied by before it is divided by [`divisor`]: shape (B, 1), or a scalar."""
        if self.hides_masked:
            return divisor / (tokens.mask_t.size(0) * accumulation)
        if row_weight is not None:
            return (row_weight > 0).float().unsqueeze(1)
        kept = tokens.policy_mask_t.sum(-1, keepdim=True)  # M may leave nothing to divide by
        by = {"row": kept, "microbatch": kept.sum()}.get(_DIVISOR[self.config.loss_type])
        return 1.0 if by is None else (by > 0).float()

    def _ratio(self, tokens: Tokens) -> torch.Tensor | float:
        """Loss tokens for each kept one, where TRL divides by the former: (B, 1), a scalar, or 1."""
        divisor = _DIVISOR[self.config.loss_type]
        if divisor == "row":
            return tokens.mask_t.sum(-1, keepdim=True) / tokens.policy_mask_t.sum(-1, keepdim=True).clamp(min=1)
        if divisor == "microbatch":
            return tokens.mask_t.sum() / tokens.policy_mask_t.sum().clamp(min=1)
        return 1.0  # recounted, or no count of tokens


def prompt_weights(kept: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Σ_i n_i / (Q Σ_{j∈q(i)} n_j): what turns a mean over all tokens into the mean over prompts of their means.

    Args:
        kept (`torch.Tensor`):
            n, shape (N,): tokens that M keeps in each row of the generation batch, of all processes.
        prompts (`torch.Tensor`):
            Shape (N,), integers: rows of the same prompt q have the same one.

    Returns:
        `torch.Tensor`: shape (N,), float32. Q counts prompts with a kept token; the rows of others get 0.
    """
    _, of_row = prompts.unique(return_inverse=True)
    per_prompt = torch.zeros(len(prompts), device=kept.device).scatter_add(0, of_row, kept.float())
    share = kept.sum() / (per_prompt * (per_prompt > 0).sum()).clamp(min=1)
    return torch.where(per_prompt > 0, share, 0.0)[of_row]
