"""The unit of credit assignment: what is known of each token when its loss is computed, and what is made of it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What is known of the tokens of a micro-batch when their loss is computed. Log-probabilities are in nats.

    Attributes:
        logp_t: Under the policy as it is, shape (B, T). Carries the gradient (not in evaluation).
        old_logp_t: π_old: under the policy that sampled, as the training model computes it, shape (B, T), detached.
        ref_logp_t: Under the reference model, shape (B, T), or `None` where `beta` is 0.
        sampling_logp_t: As the engine that sampled gave them, shape (B, T), NaN where it did not, or `None`.
        entropy_t: Of the next-token distribution, nats, shape (B, T), detached.
        advantages: Shape (B,), or (B, T) where tokens differ; after baseline, difficulty weight, whitening and floor.
        token_ids: Of the responses, int64, shape (B, T).
        segment_ids: Number of the segment that a token lies in, int64, shape (B, T), −1 in none. Without segments the
            whole response is segment 0.
        turn_ids: Number of the policy's turn in a conversation with tools or environments, int64, shape (B, T), −1 at
            tokens that the policy did not write. Without tools the whole response is turn 0.
        policy_mask_t: M as it was known before the loss (`token_mask`) and counted for the normaliser: zeros and ones
            of the type of `mask_t`, shape (B, T), never outside `mask_t`.
        mask_t: 1 for the tokens that the loss sees, floating, shape (B, T). What stands at the others (padding, tool
            results) means nothing and may not be finite.
    """

    logp_t: torch.Tensor
    old_logp_t: torch.Tensor
    entropy_t: torch.Tensor
    advantages: torch.Tensor
    token_ids: torch.Tensor
    segment_ids: torch.Tensor
    turn_ids: torch.Tensor
    policy_mask_t: torch.Tensor
    mask_t: torch.Tensor
    ref_logp_t: torch.Tensor | None = None
    sampling_logp_t: torch.Tensor | None = None


@dataclass(frozen=True)
class Credit:
    """What a GRPO loss needs to know about each token: (W, A, M).

    Attributes:
        log_weight: W, shape (B, T), nats; the loss exponentiates it in place of the log-ratio, and its gradient flows.
            `None` where TRL's own importance weight is the wanted one.
        advantage: A, shape (B,), (B, 1) or (B, T). Detached, unless the function declares `carries_loss`.
        mask: M, shape (B, T): where it is 0 the policy term of a token is left out. May read the current policy and
            leaves the normaliser alone, so that a token left out counts as one with zero advantage. `None`: all tokens
            of `Tokens.policy_mask_t`, outside of which it has no effect.
        selected: z, shape (B, T), 1 for the tokens that leave a trace, or `None` without traces; for the metrics.
        traced: The W that `selected` describes. A function that puts another W in its place leaves it alone, so that
            no metric describes a W that was not used.
    """

    log_weight: torch.Tensor | None
    advantage: torch.Tensor
    mask: torch.Tensor | None = None
    selected: torch.Tensor | None = None
    traced: torch.Tensor | None = None


def turn_numbers(written_t: torch.Tensor) -> torch.Tensor:
    """Number of the run of ones that a token lies in, from 0; −1 at zeros. Shapes (B, T) → (B, T), int64.

    In a conversation with tools the ones are the tokens that the policy wrote, and each run of them is a turn.
    """
    written_t = written_t.bool()
    before = torch.nn.functional.pad(written_t[:, :-1], (1, 0))
    number = (written_t & ~before).long().cumsum(-1) - 1
    return number.masked_fill(~written_t, -1)
