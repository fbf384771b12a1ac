"""The metrics of a loss under `credit/`: sums and counts of one micro-batch.

Each is one function, registered by [`metric`] with its names. Its docstring is its row in docs/metrics.md, which
`benchmarks/metrics_page.py` writes: the first paragraph is the meaning, the second has "Unit:" and "If it looks odd:",
and what follows is for readers of the code.
"""

from collections.abc import Callable
from functools import cached_property

import torch

from ..config import CreditConfig
from ..credit.clipping import is_clipped
from ..credit.gradient import travelled
from ..credit.selection import select_high_entropy
from ..credit.shares import last_tokens, noise_outside
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from . import keys
from .assignment import log_weight_of
from .loss_pass import LossPass


Sums = tuple[torch.Tensor, torch.Tensor]  # numerator and denominator


class SeenLoss:
    """One micro-batch in the loss, as the metrics see it; what several of them need is computed once.

    Args:
        loss_pass ([`~trl_credit.loss.loss_pass.LossPass`]):
            After TRL's loss.
        in_detail (`bool`):
            At logging steps and in evaluation.

    Attributes:
        credit, tokens: Result (W, A, M) and argument of the credit function.
        carries_loss: Whether A is minus a loss.
        credit_t: c of [`~trl_credit.credit.gradient.token_credit`], shape (B, T); `None` if not in detail.
        quarter_t: Quarter of the response, 0 … 3, that each token lies in, −1 if unknown, shape (B, T). Without it
            every row is a response.
        entropy_mask_t: Tokens that TRL's `top_entropy_quantile` keeps, shape (B, T).
    """

    def __init__(self, loss_pass: LossPass, *, in_detail: bool) -> None:
        self.config, (self.tokens, self.credit) = loss_pass.config, loss_pass.seen
        self.carries_loss = loss_pass.contract.algorithm.carries_loss
        self.in_detail, self.credit_t = in_detail, loss_pass.credit_t if in_detail else None
        self.entropy_mask_t, self.quarter_t = loss_pass.entropy_mask_t, loss_pass.inputs.get(keys.QUARTERS)

    # M, bool, shape (B, T); its tokens in each row, shape (B,), and in all rows; those of the loss
    kept_t = cached_property(lambda self: kept_tokens(self.credit, self.tokens))
    kept_n = cached_property(lambda self: self.kept_t.sum(-1, dtype=torch.float))
    n_kept = cached_property(lambda self: self.kept_n.sum())
    n_tokens = cached_property(lambda self: self.tokens.mask_t.sum(dtype=torch.float))

    # d, shape (B, T), and where it is known
    gap_t = cached_property(lambda self: self.tokens.teacher_logp_t.float() - self.tokens.old_logp_t.float())
    teacher_t = cached_property(lambda self: self.tokens.mask_t.bool() & ~self.tokens.teacher_logp_t.isnan())

    @property
    def is_traced(self) -> bool:
        """Whether W is that of the knobs and has a trace; `selected` does not describe a custom W."""
        of_knobs = self.credit.log_weight is self.credit.traced is not None
        return of_knobs and self.credit.selected is not None and not self.carries_loss

    @property
    def selection_t(self) -> torch.Tensor | None:
        """The tokens of the run's selector, else those of `top_entropy_quantile`, shape (B, T), or `None`."""
        has_selector = self.config.selector != "none" and self.credit.selected is not None
        return self.credit.selected if has_selector else self.entropy_mask_t

    @cached_property
    def sizes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """|A| before a loss weight, shape (B, T), 0 where it does not count, and where it counts: in the policy term,
        or with a custom loss, whose A is no advantage, |A| of the batch in all segments."""
        tokens = self.tokens
        counted_t = tokens.mask_t.bool() & (tokens.segment_ids >= 0) if self.carries_loss else self.kept_t
        is_changed = self.carries_loss or self.config.loss_weight != "none"
        advantage_t = wide(tokens.advantages if is_changed else self.credit.advantage).detach()
        return torch.where(counted_t, advantage_t.abs(), 0.0).float(), counted_t

    @cached_property
    def quarters_t(self) -> torch.Tensor:
        """`quarter_t`, or ⌊4i/n⌋ for token i of the n that the policy wrote in a row, −1 elsewhere; shape (B, T)."""
        if self.quarter_t is not None:
            return self.quarter_t
        written_t = self.tokens.turn_ids >= 0
        rank = written_t.cumsum(-1) - 1
        quarter_t = (4 * rank).div(written_t.sum(-1, keepdim=True).clamp(min=1), rounding_mode="floor")
        return quarter_t.masked_fill(~written_t, -1)


METRICS: list[tuple[tuple[str, ...], Callable[[SeenLoss], bool], Callable[[SeenLoss], Sums]]] = []


def metric(*names: str, when: Callable[[SeenLoss], bool] = lambda seen: True) -> Callable[[Callable], Callable]:
    """Registers a function that returns numerator and denominator of a metric: scalars, or (K,) for K names.

    `when` reads the configuration and which parts there are, but no values: processes add their sums, so all must have
    the same names. Tokens that the policy wrote have `seen.tokens.turn_ids >= 0`. The denominator counts no row without
    credit, since `skip_zero_advantage` leaves such rows out. The order is that of the page.
    """

    def registered(measure: Callable[[SeenLoss], Sums]) -> Callable[[SeenLoss], Sums]:
        METRICS.append((names, when, measure))
        return measure

    return registered


def loss_statistics(loss_pass: LossPass, *, in_detail: bool) -> dict[str, Sums]:
    """Numerator and denominator (0-dimensional tensors) of every metric of one micro-batch, by name, once TRL's loss is
    known. Processes add these sums before dividing, since their numbers of tokens differ.

    Raises:
        ValueError: the algorithm returned a metric in a wrong form, or with the name of another one.
    """
    seen = SeenLoss(loss_pass, in_detail=in_detail)
    own = loss_pass.contract.metrics(seen.config, seen.tokens, seen.credit)
    if taken := own.keys() & {name for names, _, _ in METRICS for name in names}:
        raise ValueError(f"credit={seen.config.credit!r} has a metric {min(taken)!r}, as we have: rename it.")
    stats: dict[str, Sums] = {}
    for names, when, measure in METRICS:
        if when(seen):
            sums = measure(seen)
            stats |= zip(names, [sums] if len(names) == 1 else zip(*sums, strict=True), strict=True)
    return stats | own


@metric("trained_tokens_per_row")
def trained_tokens(seen: SeenLoss) -> Sums:
    """Tokens in the policy term per row; a skipped micro-batch counts 0.

    Unit: tokens
    If it looks odd: low: many tokens or rows are masked

    Before TRL's `top_entropy_quantile`. Every row counts, so times the rows of an optimizer step it is their number.
    """
    return seen.n_kept, len(seen.kept_t)


@metric("clip_fraction", "clip_fraction/response_mean", when=lambda seen: not seen.carries_loss)
def clip_fraction(seen: SeenLoss) -> Sums:
    """Tokens of the policy term that clipping leaves without a gradient. `response_mean` is the mean of the shares of
    responses (with trees, of rows).

    Unit: share
    If it looks odd: high: make fewer updates per batch, lower the learning rate, or widen the clip. GRPO-λ's trace
        clips far more than GRPO

    In the mean a short response counts as much as a long one (arXiv 2605.05965, Sec. 5.4 and Fig. 4).
    """
    clipped_n = (clipped_tokens(seen.config, seen.credit, seen.tokens) & seen.kept_t).sum(-1, dtype=torch.float)
    share = clipped_n / seen.kept_n.clamp(min=1)
    return (clipped_n.sum(), share.sum()), (seen.n_kept, (seen.kept_n > 0).sum(dtype=torch.float))


@metric("kept_fraction", when=lambda seen: seen.config.token_mask != "none" or seen.credit.mask is not None)
def kept_fraction(seen: SeenLoss) -> Sums:
    """Tokens that `token_mask` or the credit function keeps in the policy term.

    Unit: share
    If it looks odd: near 0: raise `probability_threshold`
    """
    return seen.n_kept, seen.n_tokens


@metric("selected_fraction", when=lambda seen: seen.credit.selected is not None)
def selected_fraction(seen: SeenLoss) -> Sums:
    """Tokens that leave a trace.

    Unit: share
    If it looks odd: it should be near `selective_rate`
    """
    return (seen.credit.selected.float() * seen.tokens.mask_t.float()).sum(), seen.n_tokens


@metric("abs_advantage")
def abs_advantage(seen: SeenLoss) -> Sums:
    """Mean of abs(A) over the tokens of the policy term.

    Unit: advantage
    If it looks odd: 0: no group has signal

    It is this mean whatever `loss_type` divides by. With a custom loss A is the advantage that the algorithm got.
    """
    size_t, counted_t = seen.sizes
    return size_t.sum(), seen.n_kept if counted_t is seen.kept_t else counted_t.sum(dtype=torch.float)


@metric(*(f"abs_advantage/quarter_{q}" for q in range(1, 5)), when=lambda seen: seen.in_detail)
def abs_advantage_by_quarter(seen: SeenLoss) -> Sums:
    """Logged step: the same by quarter of the response.

    Unit: advantage
    If it looks odd: they are about equal with GRPO, and differ with segments and steps
    """
    size_t, counted_t = seen.sizes
    return _by_part(torch.stack([size_t, counted_t.float()]), seen.quarters_t, 4)


@metric("noise_share", when=lambda seen: seen.in_detail or seen.selection_t is not None)
def noise_share(seen: SeenLoss) -> Sums:
    """The estimated share of gradient noise outside of the selected tokens. Without a selector or
    `top_entropy_quantile`: of the logged step, outside of the 20 % with the highest entropy.

    Unit: share
    If it looks odd: below 0.2: a selector can hardly help, and a run with one warns ([which](which.md))

    Over the tokens of the loss, see [`~trl_credit.credit.shares.noise_outside`]. ℓ is π_old's, of the training model at
    the sampling temperature (with `behavior_logps="sampler"` the engine's own); what `top_p` or `top_k` cut off is not
    renormalised. Finding the fifth takes a sort, so without a selection it is measured in detail alone.
    """
    tokens, selected_t = seen.tokens, seen.selection_t
    if selected_t is None:
        selected_t = select_high_entropy(tokens.entropy_t, rate=0.2, mask_t=tokens.mask_t, order=tokens.entropy_order)
    return noise_outside(tokens.old_logp_t, selected_t=selected_t, mask_t=tokens.mask_t)


@metric("effective_horizon", when=lambda seen: seen.in_detail and seen.is_traced)
def effective_horizon(seen: SeenLoss) -> Sums:
    """Logged step: how far back credit travels on average, weighted by abs(A); 0 with GRPO.

    Unit: tokens
    If it looks odd: near the length of responses: lower `trace_lambda`. Near 0: raise it, or `selective_rate`

    What stays at its token travels 0, see [`~trl_credit.credit.gradient.travelled`]; `explain` shows the same number.
    """
    size_t = torch.where(seen.kept_t, wide(seen.credit.advantage.detach()).abs(), 0.0)
    return travelled(seen.credit.log_weight, logp_t=seen.tokens.logp_t, coefficient_t=size_t)


@metric("last_tokens_share", when=lambda seen: seen.in_detail and seen.config.rollouts != "tree")
def last_tokens_share(seen: SeenLoss) -> Sums:
    """Logged step: credit on the last 20 tokens over that of an even share; not with trees.

    Unit: ratio
    If it looks odd: far below 1: the trace starves the end; avoid it if the answer is there ([which](which.md))

    With the real ratio and clipping. Rows of trees are not responses. Of the tokens that the policy wrote, see
    [`~trl_credit.credit.shares.last_tokens`].
    """
    return last_tokens(seen.credit_t, mask_t=seen.tokens.turn_ids >= 0)


def _has_teacher(seen: SeenLoss) -> bool:
    return seen.tokens.teacher_logp_t is not None


@metric("teacher/kl", when=_has_teacher)
def teacher_kl(seen: SeenLoss) -> Sums:
    """Estimate of the KL divergence of the policy from the teacher: mean of ℓ° − ℓᵀ over the tokens that it scored.

    Unit: nats
    If it looks odd: 0: the teacher sees what the policy sees. Above 1: it is of another model family, or does not
        follow its context
    """
    return -torch.where(seen.teacher_t, seen.gap_t, 0.0).sum(), seen.teacher_t.sum(dtype=torch.float)


@metric("teacher/more_probable/positive", "teacher/more_probable/negative", when=_has_teacher)
def teacher_more_probable(seen: SeenLoss) -> Sums:
    """Tokens that the teacher finds more probable than the sampling policy, in responses with a positive and with a
    negative advantage.

    Unit: share
    If it looks odd: equal: the teacher does not tell right responses from wrong ones
    """
    sign_t, more_t = wide(seen.tokens.advantages).sign(), seen.teacher_t & (seen.gap_t > 0)
    of_sign_t = torch.stack([seen.teacher_t & (sign_t > 0), seen.teacher_t & (sign_t < 0)])
    return (of_sign_t & more_t).sum((1, 2), dtype=torch.float), of_sign_t.sum((1, 2), dtype=torch.float)


@metric("teacher/no_context", when=_has_teacher)
def teacher_no_context(seen: SeenLoss) -> Sums:
    """Rows that the teacher did not score, since they have no context or are too long for it.

    Unit: share
    If it looks odd: high with `"success"`: few groups have a right response. Above 0 with a column: rows lack it
    """
    has_tokens = seen.tokens.mask_t.bool().any(-1)
    return (has_tokens & ~seen.teacher_t.any(-1)).sum(dtype=torch.float), has_tokens.sum(dtype=torch.float)


def _changes_credit(seen: SeenLoss) -> bool:
    """Whether a trace, or a loss weight on TRL's ratio of a token, gives a token other credit than its advantage."""
    has_weight = seen.config.loss_weight != "none" and seen.config.importance != "sequence"
    return seen.in_detail and (seen.is_traced or (has_weight and seen.credit.log_weight is None))


@metric(
    *(f"coefficient/entropy_decile_{d}" for d in range(10)),
    *(f"coefficient/quarter_{q}" for q in range(1, 5)),
    when=_changes_credit,
)
def coefficient(seen: SeenLoss) -> Sums:
    """Logged step: credit of a token over its advantage, abs(c)/abs(A), with the real ratio and clipping, by decile of
    the entropy in a response (9 is the highest) and by quarter of the response. It needs a trace or a `loss_weight`.

    Unit: ratio
    If it looks odd: high deciles should lie above 1 with S-trace (GRPO has 1 at ratio 1). Late quarters far below early
        ones: the trace starves the end

    A clipped token counts 0. Ranked as the selector does it, over the tokens in the policy term with an advantage other
    than 0.
    """
    advantage_t = torch.where(seen.kept_t, wide(seen.tokens.advantages).detach().abs(), 0.0)
    has_credit = advantage_t > 0
    size_t = torch.where(has_credit, seen.credit_t.abs() / advantage_t, 0.0)
    values = torch.stack([size_t, has_credit.to(size_t.dtype)])
    order = seen.tokens.entropy_order
    # decile of each place in the order, below 0 outside of the loss
    rank, count = torch.arange(order.size(-1), device=order.device), seen.tokens.mask_t.sum(-1, keepdim=True).long()
    decile_t = 9 - (10 * rank).div(count.clamp(min=1), rounding_mode="floor")
    ranked = values.gather(-1, order.expand_as(values))
    return torch.cat([_by_part(ranked, decile_t, 10), _by_part(values, seen.quarters_t, 4)], -1)


def _by_part(values: torch.Tensor, part_t: torch.Tensor, n_parts: int) -> torch.Tensor:
    """Sums (2, n_parts) of numerators and denominators, `values` (2, B, T), over the tokens of each part, in one pass.

    `part_t` (B, T) numbers the parts from 0. Tokens with other numbers are left out.
    """
    bins_t = part_t.clamp(-1, n_parts) % (n_parts + 1)  # the last is for other tokens
    rows = values.new_zeros(*values.shape[:2], n_parts + 1)
    return rows.scatter_add(-1, bins_t.expand_as(values), values).sum(1)[:, :n_parts]


def clipped_tokens(config: CreditConfig, credit: Credit, tokens: Tokens) -> torch.Tensor:
    """True where the clip of the configuration leaves a token without a gradient, shape (B, T)."""
    log_weight_t, advantage_t = log_weight_of(config, credit, tokens), wide(credit.advantage.detach())
    return is_clipped(log_weight_t, advantage_t=advantage_t, clip_range=config.clip_range, form=config.clip_form)
