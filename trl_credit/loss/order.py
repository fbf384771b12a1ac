"""The one order of A and M: baseline → difficulty → M → whitening → upper bound → floor, and the `Tokens` that follow.

Training goes through it in three places, since a batch is sampled, then cut, then passed through the model; `explain`
goes through it at once. All functions are pure: sums over processes are passed in.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from ..config import CreditConfig
from ..credit.advantages import optimal_advantage, td_upper_bound, whiten
from ..credit.difficulty import difficulty_weight
from ..credit.tokens import Tokens, wide
from .assignment import described, policy_mask


Reduce = Callable[[torch.Tensor], torch.Tensor]  # sums a tensor over processes; collective


def outcome_advantages(
    config: CreditConfig, rewards: torch.Tensor, *, lengths: torch.Tensor, num_generations: int
) -> torch.Tensor | None:
    """A of whole responses by the baseline of the configuration, shape (N,); `None` where it is TRL's own.

    Args:
        rewards (`torch.Tensor`):
            Shape (N,), groups of `num_generations` consecutive responses; NaN without a score.
        lengths (`torch.Tensor`):
            Loss tokens of each response, shape (N,).

    Raises:
        ValueError: a custom baseline returned no finite advantage for each reward.
    """
    baseline = config.custom_function("baseline") or {"group": None, "optimal": optimal_advantage}[config.baseline]
    if baseline is None:
        return None
    advantages = baseline(rewards.clone(), lengths=lengths, num_generations=num_generations)  # it may write into them
    has_shape = isinstance(advantages, torch.Tensor) and advantages.shape == rewards.shape
    if not has_shape or not advantages.isfinite().all():
        rule = f"a finite advantage for each reward, shape {tuple(rewards.shape)}, and 0 where a reward is NaN"
        raise ValueError(f"baseline {config.baseline!r} must return {rule}; it returned {described(advantages)}.")
    return advantages.detach().to(rewards.dtype)


class Ordered(NamedTuple):
    """A and M of a generation batch.

    Attributes:
        advantages: A, shape (B,), or (B, T) if tokens differ.
        kept_t: M, shape (B, T), `mask_t` itself where it keeps all tokens; `None` if it reads π_old, which is unknown.
        phi: HA-DW's weight, of the shape of A before whitening, or `None`.
        p_hat: p̂ of the same shape, or `None`.
    """

    advantages: torch.Tensor
    kept_t: torch.Tensor | None
    phi: torch.Tensor | None
    p_hat: torch.Tensor | None


def in_batch(
    config: CreditConfig,
    advantages: torch.Tensor,
    *,
    p_hat: torch.Tensor | None = None,
    prior: float | None = None,
    old_logp_t: torch.Tensor | None,
    segment_ids: torch.Tensor,
    mask_t: torch.Tensor,
    reduce: Reduce = lambda sums: sums,
) -> Ordered:
    """What a generation batch goes through before it is cut: difficulty → M → whitening over the batch.

    Args:
        advantages (`torch.Tensor`):
            After the baseline, or of segments, shape (B,) or (B, T).
        p_hat (`torch.Tensor`, *optional*), prior (`float`, *optional*):
            Accuracy of each row's prompt in [0, 1], shape (B,), and the belief before the batch. Without them A is not
            weighted.
        old_logp_t (`torch.Tensor` or `None`):
            Shape (B, T), nats.
        segment_ids, mask_t (`torch.Tensor`):
            Shape (B, T).
        reduce (`Callable`, *optional*):
            Sums a tensor over processes. Called if the configuration whitens the batch.
    """
    phi = None
    if prior is not None:
        p_hat = p_hat if advantages.dim() == 1 else p_hat.view(-1, 1).expand_as(advantages)
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=config.difficulty_scale)
        advantages = advantages * phi
    if config.token_mask != "none" and old_logp_t is None:
        return Ordered(advantages, None, phi, p_hat)
    kept_t = policy_mask(config, old_logp_t=old_logp_t, segment_ids=segment_ids, mask_t=mask_t)
    if config.whiten_advantages == "batch":
        advantages = _whitened(advantages, kept_t, mask_t, reduce)
    return Ordered(advantages, kept_t, phi, p_hat)


def in_loss(
    config: CreditConfig, tokens: Tokens, *, eos_probs: torch.Tensor | None = None, reduce: Reduce = lambda sums: sums
) -> Tokens:
    """What the advantages of a micro-batch go through: whitening over it → upper bound → floor.

    Args:
        tokens ([`Tokens`]):
            With A as [`in_batch`] left it.
        eos_probs (`torch.Tensor`, *optional*):
            π(EOS) at each token under the current policy, shape (B, T), for `td_upper_bound`.
        reduce (`Callable`, *optional*):
            Sums a tensor over processes. Called if the configuration whitens the micro-batch.
    """
    advantages = tokens.advantages
    if config.whiten_advantages == "microbatch":
        advantages = _whitened(advantages, tokens.policy_mask_t, tokens.mask_t, reduce)
    if config.td_upper_bound:
        advantages = wide(advantages) + td_upper_bound(eos_probs.masked_fill(tokens.turn_ids < 0, 0.0))
    return replace(tokens, advantages=floored(config, advantages))


def floored(config: CreditConfig, advantages: torch.Tensor) -> torch.Tensor:
    """A with its floor, which comes once, after all other changes."""
    return advantages if config.advantage_floor is None else advantages.clamp(min=config.advantage_floor)


def _whitened(advantages: torch.Tensor, kept_t: torch.Tensor, mask_t: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """Over the tokens of M, or those of the loss if M keeps none."""
    return whiten(advantages, mask_t=kept_t if kept_t.any() else mask_t, reduce=reduce)
