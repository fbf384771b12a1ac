"""How TRL divides the loss of each `loss_type`, and how a mask M or an average over prompts or turns changes it."""

import torch

from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..credit.turns import turn_average_factor
from .assignment import log_weight_of


# What TRL divides a sum over tokens by: the loss tokens of a row, and then the number of rows; or `num_items_in_batch`,
# counted over all processes. "bnpo" has the loss tokens of the micro-batch, "dr_grpo" `max_completion_length`, and
# "luspo" 1.
_BY_ROW, _BY_BATCH = ("grpo", "sapo"), ("dapo", "cispo", "vespo")


# All functions are pure. Tensors have shape (B, T) unless noted.


def counts_batch(config: CreditConfig) -> bool:
    """Whether TRL divides by `num_items_in_batch`, which must then be the number of tokens that M keeps."""
    return config.loss_type in _BY_BATCH


def hides_masked(config: CreditConfig) -> bool:
    """Whether tokens outside of M are hidden from TRL's whole loss, including its KL term (SPO's released code)."""
    return config.token_mask != "none" and config.uses_released_code("spo_normalizer")


def loss_advantage(
    config: CreditConfig, credit: Credit, tokens: Tokens, *, row_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """A for TRL's loss: 0 where M is 0, times the factor that turns TRL's mean into one over the tokens of M, times
    [`turn_factor`], times `row_weight` (B,) of [`prompt_weights`].

    min(ρA, clip(ρ)A) scales with A by any factor ≥ 0, so the factor may sit on the advantage. `credit.mask` zeroes
    terms without changing the normaliser; `tokens.policy_mask_t` changes it.
    """
    advantage = wide(credit.advantage)
    if row_weight is not None:
        advantage = advantage * row_weight.unsqueeze(1)
    if (turn_factor_t := turn_factor(config, tokens)) is not None:
        advantage = advantage * turn_factor_t
    if credit.mask is None and tokens.policy_mask_t is tokens.mask_t:
        return advantage
    if (all_tokens := loss_count(config, tokens.mask_t)) is not None:
        advantage = advantage * (all_tokens / loss_count(config, tokens.policy_mask_t).clamp(min=1))
    # where, not a product: tokens outside of M may hold NaN
    return torch.where(kept_tokens(credit, tokens), advantage, 0.0)


def missing_kl(
    config: CreditConfig,
    credit: Credit,
    tokens: Tokens,
    *,
    beta: float,
    mean_tokens: torch.Tensor | None,
    row_weight: torch.Tensor | None = None,
    zero_variance: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """The difference between the KL term of a micro-batch and TRL's: a scalar, or `None` if they are equal.

    With k3_t as in TRL, the KL term is β Σ_t k3_t / Σ_t M_t: all loss tokens in the numerator, divided as the
    policy term is (SPO, Eq. 3 and 4), and 0 where M keeps no token. With "spo_normalizer" of the released code it
    is the mean over rows of β Σ_t M_t k3_t. Losses that divide by `num_items_in_batch` have had it recounted. With
    `turn_average` it is divided turn by turn, as the policy term is.

    Args:
        mean_tokens (`torch.Tensor` or `None`):
            A scalar: mean number of tokens that M keeps in a micro-batch of one process, over the generation
            batch. Needed where the loss divides by `num_items_in_batch`.
        row_weight (`torch.Tensor`, *optional*):
            Shape (B,), as for [`loss_advantage`].
        zero_variance (`torch.Tensor`, *optional*):
            Rows without a KL term, bool, shape (B,).
    """
    as_trl = config.token_mask == "none" or loss_count(config, tokens.mask_t) is None
    turn_factor_t = turn_factor(config, tokens)
    if beta == 0.0 or (as_trl and not hides_masked(config) and row_weight is None and turn_factor_t is None):
        return None
    difference = tokens.ref_logp_t - tokens.logp_t
    kl_t = (difference.exp() - difference - 1) * tokens.mask_t
    if config.use_bias_correction_kl:
        kl_t = kl_t * log_weight_of(config, credit, tokens).exp()
    kl_t = kl_t if zero_variance is None else kl_t.masked_fill(zero_variance.unsqueeze(1), 0.0)
    kl = kl_t.sum(-1, keepdim=True)
    if hides_masked(config):  # mask_t is M here
        target = kl.mean()
    elif row_weight is not None:
        target = (row_weight.unsqueeze(1) * kl).sum() / mean_tokens
    else:
        of_turns = kl if turn_factor_t is None else (kl_t * turn_factor_t).sum(-1, keepdim=True)
        target = _divided(config, of_turns, tokens.policy_mask_t, mean_tokens)
    return beta * (target - _divided(config, kl, tokens.mask_t, mean_tokens))


def divisors(config: CreditConfig, tokens: Tokens) -> torch.Tensor:
    """What the loss divides the terms of each row by, up to a factor that all rows share, shape (B, 1) or a
    scalar, where these rows are a generation batch."""
    count = tokens.policy_mask_t.sum() if counts_batch(config) else loss_count(config, tokens.policy_mask_t)
    return torch.ones(()) if count is None else count.clamp(min=1)


def loss_count(config: CreditConfig, counted_t: torch.Tensor) -> torch.Tensor | None:
    """The tokens that the loss counts in a row, shape (B, 1), or in a micro-batch, a scalar; else `None`."""
    if config.loss_type in _BY_ROW:
        return counted_t.sum(-1, keepdim=True)
    return counted_t.sum() if config.loss_type == "bnpo" else None


def _divided(
    config: CreditConfig, rows: torch.Tensor, counted_t: torch.Tensor, mean_tokens: torch.Tensor | None
) -> torch.Tensor:
    """The loss from sums over the tokens of each row, shape (B, 1), when TRL counts `counted_t`: a scalar."""
    if counts_batch(config):
        return rows.sum() / mean_tokens
    if (count := loss_count(config, counted_t)) is None:
        return rows.mean() / (config.max_completion_length if config.loss_type == "dr_grpo" else 1)
    return torch.where(count > 0, (rows if count.dim() else rows.sum()) / count.clamp(min=1), 0.0).mean()


def turn_factor(config: CreditConfig, tokens: Tokens) -> torch.Tensor | None:
    """With `turn_average`: the factor, shape (B, T), that turns the mean over the tokens that M keeps in a row into the
    mean over its turns of their means. `None` where it is 1 at all tokens."""
    return turn_average_factor(tokens.turn_ids, mask_t=tokens.policy_mask_t) if config.turn_average else None


def prompt_weights(kept: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Σ_i n_i / (Q Σ_{j∈q(i)} n_j): row weights that turn a mean over tokens into a mean over prompts of their means.

    Args:
        kept (`torch.Tensor`):
            n, shape (N,): tokens that M keeps in each row of the generation batch, of all processes.
        prompts (`torch.Tensor`):
            Shape (N,), integers: number of the prompt q of each row.

    Returns:
        `torch.Tensor`: shape (N,), float32. Q counts prompts with a kept token; rows of the others get 0.
    """
    _, of_row = prompts.unique(return_inverse=True)
    per_prompt = torch.zeros(len(prompts), device=kept.device).scatter_add(0, of_row, kept.float())
    share = kept.sum() / (per_prompt * (per_prompt > 0).sum()).clamp(min=1)
    return torch.where(per_prompt > 0, share, 0.0)[of_row]
