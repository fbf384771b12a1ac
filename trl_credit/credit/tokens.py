"""The data types of credit functions: `Tokens`, which they receive, and `Credit`, which they return."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from .selection import entropy_order


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a micro-batch when their loss is computed. Log-probabilities are in nats.

    Attributes:
        logp_t: Log-probabilities under the current policy, shape (B, T). They carry the gradient; in evaluation, where
            nothing follows from it, too.
        old_logp_t: π_old: under the policy that sampled, computed by the training model, shape (B, T), detached.
        ref_logp_t: Under the reference model, shape (B, T), or `None` if `beta` is 0.
        sampling_logp_t: As returned by the engine that sampled, shape (B, T); NaN where unknown; `None` if all are.
        entropy_t: Entropy of the next-token distribution, nats, shape (B, T); detached, unless the algorithm needs
            "entropy_gradient".
        ref_entropy_t: The same of the reference model, with `selector="entropy_reference"` only; else `None`.
        advantages: Shape (B,), or (B, T) if tokens differ; after baseline, difficulty weight, whitening,
            `td_upper_bound` and floor.
        token_ids: Token ids of the responses, int64, shape (B, T).
        segment_ids: Number of each token's segment, int64, shape (B, T); −1 for none. Without segments the whole
            response is segment 0.
        turn_ids: Number of the policy's turn in a conversation with tools or environments, int64, shape (B, T); −1 at
            tokens that the policy did not write (padding, tool results). Without tools the whole response is turn 0.
        policy_mask_t: The part of M that is known before the loss (`token_mask`) and that the normaliser counts: zeros
            and ones of the type of `mask_t`, shape (B, T), never outside `mask_t`.
        statistics_t: What the algorithm's `statistics` returned for these tokens, shape (B, T), see [`BatchTokens`];
            `None` without.
        hidden_t: The last layer's states from which the tokens were sampled, shape (B, T, H), if the algorithm needs
            "hidden"; else `None`. They carry the gradient.
        teacher_logp_t: Under the teacher in its context, shape (B, T), if the algorithm needs "teacher"; NaN in rows
            without a context. `None` without a teacher.
        step: Optimizer steps of the run before this one.
        is_training: Whether the model trains on these tokens.
        seed: For random numbers. It follows from the run's `seed`, the optimizer step, the place of the micro-batch in
            it and the process, so a resumed run draws what the uninterrupted one draws.
        mask_t: 1 for the tokens of this loss, floating, shape (B, T). It may lack tokens of the response (rows that
            were cut off, `released_code=["spo_normalizer"]`). Where it is 0, all tensors but `turn_ids` are meaningless
            and may not be finite.
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
    ref_entropy_t: torch.Tensor | None = None
    statistics_t: torch.Tensor | None = None
    hidden_t: torch.Tensor | None = None
    teacher_logp_t: torch.Tensor | None = None
    step: int = 0
    is_training: bool = True
    seed: int = 0

    @cached_property
    def entropy_order(self) -> torch.Tensor:
        """[`~trl_credit.credit.selection.entropy_order`] of `entropy_t`, shape (B, T). Sorted once, on first use."""
        return entropy_order(self.entropy_t, mask_t=self.mask_t)


@dataclass(frozen=True, kw_only=True)
class BatchTokens:
    """The rows of a generation batch, of all processes, before it is cut into micro-batches: what the `statistics` of
    an algorithm receive.

    Rows are in the order in which the batch was generated, whatever the number of processes. Nothing has a gradient.

    Attributes:
        logp_t: Log-probabilities under π_old, or as returned by the engine that sampled, shape (N, T), nats; `None`
            unless the algorithm needs "logps".
        advantage_t: Shape (N, T); after baseline, difficulty weight, whitening of the batch and floor. Whitening of a
            micro-batch and `td_upper_bound` come later.
        rewards: Total rewards, shape (N,); NaN without a score. `None` for trees, whose rows are segments.
        reward_columns: Rewards by function, shape (N, F); `None` for trees.
        group_ids: Number of each row's prompt in the batch, from 0, int64, shape (N,).
        token_ids, segment_ids, turn_ids: As in [`Tokens`], shape (N, T).
        teacher_logp_t: As in [`Tokens`], shape (N, T).
        columns: The columns of the data set for each row, N dicts, if the algorithm needs "columns"; else, and for
            trees, `None`.
        is_training: Whether the model is going to train on the batch, for the first time: only then state may move.
        generator: Random numbers on the CPU, the same on all processes. Its seed follows from `seed` and the optimizer
            step, so a resumed run draws what the uninterrupted one draws.
        mask_t: 1 for the tokens of M (`Tokens.policy_mask_t`), with "logps" those whose log-probability is known,
            floating, shape (N, T). Elsewhere the other tensors may not be finite.
    """

    advantage_t: torch.Tensor
    generator: torch.Generator
    mask_t: torch.Tensor
    logp_t: torch.Tensor | None = None
    rewards: torch.Tensor | None = None
    reward_columns: torch.Tensor | None = None
    group_ids: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None
    segment_ids: torch.Tensor | None = None
    turn_ids: torch.Tensor | None = None
    teacher_logp_t: torch.Tensor | None = None
    columns: list[dict[str, Any]] | None = None
    is_training: bool = True


@dataclass(frozen=True)
class Credit:
    """What a GRPO loss needs for each token: (W, A, M).

    Attributes:
        log_weight: W, shape (B, T), nats; the loss exponentiates it instead of the log-ratio, and its gradient flows.
            `None` keeps TRL's own importance weight.
        advantage: A, shape (B,), (B, 1) or (B, T). Detached, unless the function declares
            `carries_loss`, or it has the factor f of an ε-weight with a gradient (`loss_weight_confidence`).
        mask: M, shape (B, T): 0 removes the policy term of a token. It may read the current policy and does not change
            the normaliser, so a removed token counts like one with zero advantage. `None` keeps all tokens of
            `Tokens.policy_mask_t`; outside of that M has no effect.
        selected: z, shape (B, T), 1 for the tokens that leave a trace, or `None` without traces; for the metrics.
        traced: W as the knobs made it. Metrics of traces are logged only while `log_weight` is this same tensor.
    """

    log_weight: torch.Tensor | None
    advantage: torch.Tensor
    mask: torch.Tensor | None = None
    selected: torch.Tensor | None = None
    traced: torch.Tensor | None = None


def wide(x: torch.Tensor) -> torch.Tensor:
    """(B,) as (B, 1); (B, T) unchanged."""
    return x.unsqueeze(1) if x.dim() == 1 else x


def kept_tokens(credit: Credit, tokens: Tokens) -> torch.Tensor:
    """The tokens of the policy term, bool, shape (B, T): M before the loss and that of the credit."""
    kept_t = tokens.policy_mask_t.bool()
    return kept_t if credit.mask is None else kept_t & credit.mask.bool()


def as_batch(tokens: Tokens, **rows: Any) -> BatchTokens:
    """A micro-batch as if it were a generation batch, with its tokens under the current policy.

    `rows` are other attributes, such as `rewards` and `group_ids`.
    """
    batch = BatchTokens(
        logp_t=tokens.logp_t.detach(),
        advantage_t=wide(tokens.advantages).expand_as(tokens.logp_t),
        generator=torch.Generator().manual_seed(tokens.seed),
        mask_t=tokens.policy_mask_t,
        token_ids=tokens.token_ids,
        segment_ids=tokens.segment_ids,
        turn_ids=tokens.turn_ids,
        teacher_logp_t=tokens.teacher_logp_t,
    )
    return replace(batch, **rows)


def turn_numbers(written_t: torch.Tensor) -> torch.Tensor:
    """Number of the run of ones that each token lies in, from 0; −1 at zeros. Shapes (B, T) → (B, T), int64.

    In a conversation with tools the policy wrote the tokens with a one, and each run of ones is a turn.
    """
    written_t = written_t.bool()
    before = torch.nn.functional.pad(written_t[:, :-1], (1, 0))
    number = (written_t & ~before).long().cumsum(-1) - 1
    return number.masked_fill(~written_t, -1)
