"""Segments of a response: where they begin, and their advantages from the values at their ends (SPO, VinePPO).

Positions are 0-based. A boundary at b means that a segment begins with token b, in the state s_b after b tokens. The
segments of the paper cover the response. A partition may also begin later: tokens before its first boundary are the
lead, which gets no credit.
"""

import torch

from .difficulty import to_unit_interval
from .turns import TurnTable


def cutpoint_boundaries(
    old_logp_t: torch.Tensor,
    *,
    threshold: float,
    interval: int | None = None,
    num_segments: int | None = None,
    from_first_cutpoint: bool = False,
    include_last: bool = False,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """U = {t : exp(ℓ°_t) < ρ}: segments that cover the row, with n members of U in each but the last (SPO, 2505.23564).

    The first segment begins at the first token, in the state x (Eq. 2), and every other one just before a member of U.
    A row without a cutpoint is one segment.

    Args:
        old_logp_t (`torch.Tensor`):
            Shape (B, T), nats, at sampling temperature and without top-p.
        threshold (`float`):
            ρ > 0; cutpoints are strictly below it.
        interval (`int`, *optional*):
            n ≥ 1, cutpoints per segment. Give either this or `num_segments`.
        num_segments (`int`, *optional*):
            K ≥ 1 segments, whose numbers of cutpoints differ by at most one, larger ones first. This minimises
            Σ_k |U∩seg_k|². With fewer than K cutpoints there is one segment per cutpoint.
        from_first_cutpoint (`bool`, *optional*, defaults to `False`):
            Whether the first segment begins at the first cutpoint, so that the tokens before it are a lead without
            credit, and a row without a cutpoint has no segment (not in the paper, but in the released code).
        include_last (`bool`, *optional*, defaults to `False`):
            Whether the last token of a row may be a cutpoint (not in the paper, but in the released code).
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: bool, shape (B, T).
    """
    mask_t = mask_t.bool()
    cut = (old_logp_t.detach().exp() < threshold) & mask_t
    if not include_last:  # the last token is usually the end of sequence
        count = mask_t.sum(-1, keepdim=True)
        cut &= (mask_t.cumsum(-1) < count) | (count == 1)
    split = fixed_length_boundaries if num_segments is None else fixed_count_boundaries
    boundaries = split(interval if num_segments is None else num_segments, mask_t=cut)
    if from_first_cutpoint:
        return boundaries
    return boundaries & (boundaries.cumsum(-1) > 1) | mask_t & (mask_t.cumsum(-1) == 1)


def fixed_length_boundaries(length: int, *, mask_t: torch.Tensor) -> torch.Tensor:
    """A segment begins at the first and then at every `length`-th loss token. Bool, shape (B, T)."""
    tokens = mask_t.bool()
    return tokens & ((tokens.cumsum(-1) - 1) % length == 0)


def fixed_count_boundaries(count: int, *, mask_t: torch.Tensor) -> torch.Tensor:
    """`count` segments per row, whose lengths differ by at most one token, longer ones first. Bool, shape (B, T).

    A row with fewer tokens has one segment per token.
    """
    tokens = mask_t.bool()
    rank, n = tokens.cumsum(-1) - 1, tokens.sum(-1, keepdim=True)
    count = n.clamp(max=count, min=1)
    small, larger = n // count, n % count
    head = larger * (small + 1)
    in_head = rank % (small + 1) == 0
    in_tail = (rank - head) % small.clamp(min=1) == 0
    return tokens & torch.where(rank < head, in_head, in_tail)


def position_boundaries(positions: list[list[int]], *, mask_t: torch.Tensor) -> torch.Tensor:
    """Boundaries at the given positions of each row, except those that are no loss token. Bool, shape (B, T)."""
    boundaries = torch.zeros_like(mask_t, dtype=torch.bool)
    for row, of_row in enumerate(positions):
        boundaries[row, [p for p in of_row if 0 <= p < mask_t.size(1)]] = True
    return boundaries & mask_t.bool()


def segment_ids(boundaries: torch.Tensor) -> torch.Tensor:
    """Number of each token's segment, from 0; −1 in the lead. Shapes (B, T) → (B, T), int64."""
    return boundaries.long().cumsum(-1) - 1


def segment_advantages(
    value_t: torch.Tensor, *, boundaries: torch.Tensor, final_value: torch.Tensor, mask_t: torch.Tensor
) -> torch.Tensor:
    """A_k = V(s_{b_{k+1}}) − V(s_{b_k}) on every token of segment k, V(s_T) = R (SPO, 2505.23564, Eq. 2).

    The advantages of a row's segments add up to R − V(s_{b_1}). Lead, padding and rows without a boundary get 0.

    Args:
        value_t (`torch.Tensor`):
            V(s_b) at the boundaries, shape (B, T); other values are not read.
        boundaries (`torch.Tensor`):
            Bool, shape (B, T).
        final_value (`torch.Tensor`):
            R, the reward of the finished response, shape (B,).
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T), in float32 or wider.
    """
    ids = segment_ids(boundaries)
    values = torch.nn.functional.pad(TurnTable(ids, boundaries).sum(value_t), (0, 1))
    # the first column after those of a row's segments
    values.scatter_(-1, boundaries.sum(-1, keepdim=True), final_value.to(values.dtype).unsqueeze(-1))
    return TurnTable(ids, mask_t).by_token(values[:, 1:] - values[:, :-1])


def value_at_segment_start(value_t: torch.Tensor, *, boundaries: torch.Tensor) -> torch.Tensor:
    """V(s_{b_k}) on every token of segment k, 0 in the lead. Shapes (B, T) → (B, T)."""
    ids = segment_ids(boundaries)
    return TurnTable(ids, torch.ones_like(ids)).by_token(TurnTable(ids, boundaries).sum(value_t))


def tail_log_probability(old_logp_t: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """log Π_{t≥b} π_old(y_t): log-probability, in state s_b, of the rest of the response. Shape (B, T), nats.

    All other continuations together have probability 1 − Π. With rewards in an interval of length ℓ therefore
    |V(s_b) − R| ≤ (1 − Π) ℓ.
    """
    return (old_logp_t.detach() * mask_t).flip(-1).cumsum(-1).flip(-1)


def best_of_value(value: torch.Tensor, *, best_of: int, reward_range: tuple[float, float] = (0.0, 1.0)) -> torch.Tensor:
    """V^μ = 1 − (1 − V)^K: the probability that the best of K tries succeeds (SPO, App. C), V mapped to [0, 1].

    Any shape. `reward_range`: the values that become 0 and 1. NaN stays NaN.

    Raises:
        ValueError: a value lies outside `reward_range`.
    """
    return 1.0 - (1.0 - to_unit_interval(value, reward_range)) ** best_of


def policy_iteration_loss(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    ref_logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    segment_ids: torch.Tensor,
    beta: float,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """`w (β Σ_{t∈seg}(ℓ_t − ℓ^ref_t) − A)²`, `w = min(exp Σ_{t∈seg}(ℓ_t − ℓ°_t), 10)` detached (SPO, App. B).

    The loss is 0 once the log-ratio to the reference has reached A/β. `docs/theory.md` says what the appendix leaves
    open: the action is a segment, and the cap of 10 and the detached weight are those of the released code.

    Args:
        logp_t, old_logp_t, ref_logp_t, advantage_t, mask_t (`torch.Tensor`):
            Shape (B, T), log-probabilities in nats. The advantage must be equal at all loss tokens of a segment.
        segment_ids (`torch.Tensor`):
            Shape (B, T), −1 for tokens in no segment.
        beta (`float`):
            β > 0.

    Returns:
        `torch.Tensor`: the loss of each segment at its last loss token, 0 elsewhere; shape (B, T).
    """
    segments, ends = TurnTable(segment_ids, mask_t), segment_ends(segment_ids, mask_t=mask_t)
    weight = segments.sum((logp_t - old_logp_t).detach()).exp().clamp(max=10.0)
    advantage = segments.sum(advantage_t * ends)
    loss = weight * (beta * segments.sum(logp_t - ref_logp_t) - advantage).square()
    return segments.by_token(loss).masked_fill(ends == 0, 0.0)


def segment_ends(segment_ids: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """1 at the last loss token of every segment, 0 elsewhere; −1 is no segment. Shapes (B, T), the type of `mask_t`."""
    segments = TurnTable(segment_ids, mask_t)
    position = torch.arange(mask_t.size(1), device=mask_t.device).expand_as(segment_ids)
    _, last = segments.bounds(position)
    return (segments.inside_t & (position == segments.by_token(last))).to(mask_t.dtype)
