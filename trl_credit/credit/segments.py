"""Segments of a response: where they begin, and the advantage that the values at their ends give them (SPO, VinePPO).

Positions are 0-based. A boundary at b means that a segment begins with token b, and that its value is that of the
state s_b in which b tokens have been written. What lies before the first boundary is the lead, which gets no credit.
"""

import torch


def cutpoint_boundaries(
    old_logp_t: torch.Tensor,
    *,
    threshold: float,
    interval: int | None = None,
    num_segments: int | None = None,
    include_first: bool = False,
    include_last: bool = False,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """U = {t : exp(ℓ°_t) < ρ}; a segment begins at every n-th member of U, the first one included (SPO, 2505.23564).

    Args:
        old_logp_t (`torch.Tensor`):
            Shape (B, T), nats, at sampling temperature and without top-p.
        threshold (`float`):
            ρ > 0; a token is a cutpoint strictly below it.
        interval (`int`, *optional*):
            n ≥ 1, cutpoints per segment. Either this or `num_segments`.
        num_segments (`int`, *optional*):
            K ≥ 1 segments, whose numbers of cutpoints differ by one at most, the larger first, which minimises
            Σ_k |U∩seg_k|². With fewer than K cutpoints, as many segments as cutpoints.
        include_first (`bool`, *optional*, defaults to `False`):
            Whether the first token always begins a segment, so that there is no lead.
        include_last (`bool`, *optional*, defaults to `False`):
            Whether the last token of a row may be a cutpoint (in the paper it may not; in the released code it may). It
            is mostly the end-of-sequence token, before which the value is that of the finished response. The only token
            of a row always may.
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: bool, shape (B, T).

    Raises:
        ValueError: `threshold`, `interval` or `num_segments` out of range, or not exactly one of the two given.
    """
    if not threshold > 0.0:
        raise ValueError(f"threshold must be positive, got {threshold}")
    if (interval is None) == (num_segments is None):
        raise ValueError("give either interval (cutpoints per segment) or num_segments")
    mask_t = mask_t.bool()
    cut = (old_logp_t.detach().exp() < threshold) & mask_t
    if not include_last:
        cut = cut & (~_last(mask_t) | (mask_t.sum(-1, keepdim=True) == 1))
    rank = cut.cumsum(-1) - 1
    if interval is not None:
        chosen = rank % _positive("interval", interval) == 0
    else:
        count = cut.sum(-1, keepdim=True)
        chosen = _begins_part(rank, count, _positive("num_segments", num_segments))
    boundaries = cut & chosen
    return boundaries | _first(mask_t) if include_first else boundaries


def fixed_length_boundaries(length: int, *, mask_t: torch.Tensor) -> torch.Tensor:
    """A segment begins at every `length`-th loss token, the first one included. Bool, shape (B, T).

    Raises:
        ValueError: `length` is below 1.
    """
    mask_t = mask_t.bool()
    return ((mask_t.cumsum(-1) - 1) % _positive("length", length) == 0) & mask_t


def fixed_count_boundaries(count: int, *, mask_t: torch.Tensor) -> torch.Tensor:
    """`count` segments per row, whose lengths differ by one token at most, the longer first. Bool, shape (B, T).

    A row of fewer tokens has a segment per token.

    Raises:
        ValueError: `count` is below 1.
    """
    mask_t = mask_t.bool()
    rank = mask_t.cumsum(-1) - 1
    return _begins_part(rank, mask_t.sum(-1, keepdim=True), _positive("count", count)) & mask_t


def position_boundaries(positions: list[list[int]], *, mask_t: torch.Tensor) -> torch.Tensor:
    """Boundaries at the given positions of each row, those outside the loss tokens left out. Bool, shape (B, T)."""
    boundaries = torch.zeros_like(mask_t, dtype=torch.bool)
    for row, found in enumerate(positions):
        inside = [p for p in found if 0 <= p < mask_t.size(1)]
        boundaries[row, inside] = True
    return boundaries & mask_t.bool()


def segment_ids(boundaries: torch.Tensor) -> torch.Tensor:
    """Number of the segment that a token lies in, from 0; −1 in the lead. Shapes (B, T) → (B, T), int64."""
    return boundaries.long().cumsum(-1) - 1


def segment_advantages(
    value_t: torch.Tensor, *, boundaries: torch.Tensor, final_value: torch.Tensor, mask_t: torch.Tensor
) -> torch.Tensor:
    """A_k = V(s_{b_{k+1}}) − V(s_{b_k}) on every token of segment k, V(s_T) = R (SPO, 2505.23564, Eq. 2).

    Along a row the segments add up to R − V(s_{b_1}). Lead, padding and rows without a boundary get 0.

    Args:
        value_t (`torch.Tensor`):
            Shape (B, T): V(s_b) at the boundaries; not read elsewhere.
        boundaries (`torch.Tensor`):
            Bool, shape (B, T).
        final_value (`torch.Tensor`):
            Shape (B,): the finished response's own reward.
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T), the type of `value_t`.
    """
    ids = segment_ids(boundaries)
    count = boundaries.sum(-1, keepdim=True)
    table = value_t.new_zeros(value_t.size(0), int(count.max()) + 2)
    # column k holds V(s_{b_k}), the one after the last the final value, and the last of all takes what is no boundary
    table.scatter_(-1, torch.where(boundaries, ids, table.size(-1) - 1), value_t)
    table.scatter_(-1, count, final_value.to(value_t.dtype).unsqueeze(-1))
    difference = table[:, 1:] - table[:, :-1]
    credit = difference.gather(-1, ids.clamp(min=0))
    return torch.where((ids >= 0) & mask_t.bool(), credit, 0.0)


def value_at_segment_start(value_t: torch.Tensor, *, boundaries: torch.Tensor) -> torch.Tensor:
    """V(s_{b_k}) on every token of segment k, 0 in the lead. Shapes (B, T) → (B, T)."""
    ids = segment_ids(boundaries)
    table = value_t.new_zeros(value_t.size(0), int(ids.max().clamp(min=0)) + 2)
    table.scatter_(-1, torch.where(boundaries, ids, table.size(-1) - 1), value_t)
    return torch.where(ids >= 0, table.gather(-1, ids.clamp(min=0)), 0.0)


def tail_log_probability(old_logp_t: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """log Π_{t≥b} π_old(y_t): how sure the policy was, in state s_b, of the very response that it wrote. Shape (B, T).

    With rewards in an interval of length ℓ, |V(s_b) − R| ≤ (1 − Π) ℓ, since all other continuations together have
    probability 1 − Π.
    """
    return (old_logp_t.detach() * mask_t).flip(-1).cumsum(-1).flip(-1)


def best_of_value(value: torch.Tensor, *, best_of: int) -> torch.Tensor:
    """V^μ = 1 − (1 − V)^K: the chance that the best of K tries succeeds (SPO, App. C). Any shape, V in [0, 1] or NaN.

    Raises:
        ValueError: `best_of` is below 1, or a value lies outside [0, 1].
    """
    _positive("best_of", best_of)
    slack = 1e-5  # a mean of equal numbers may round to one above them
    if ((value < -slack) | (value > 1.0 + slack)).any():
        raise ValueError(
            f"values must lie in [0, 1], got {value.min().item():.4g} to {value.max().item():.4g}: set reward_range to "
            "the smallest and largest total reward"
        )
    return 1.0 - (1.0 - value.clamp(0.0, 1.0)) ** best_of


def policy_iteration_loss(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    ref_logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    segment_ids: torch.Tensor,
    beta: float,
    weight_cap: float = 10.0,
    mask_t: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """w (β Σ_{t∈seg}(ℓ_t − ℓ^ref_t) − A)²,  w = min(exp Σ_{t∈seg}(ℓ_t − ℓ°_t), cap) detached (SPO, App. B).

    The appendix writes π(a|s), and the states between which A is a difference are those at the ends of segments: a
    segment is the action, so its log-probability is the sum over its tokens (to ask the same A of every single token
    would be another loss). It is 0 where the log-ratio to the reference has reached A/β. The appendix names the weight
    π/π_old and neither a cap nor whether it has a gradient: the cap is ours, and without a gradient as in the released
    code. That takes half of this loss, β = .1 and the same cap, of which the appendix has none.

    Args:
        logp_t, old_logp_t, ref_logp_t, advantage_t, mask_t (`torch.Tensor`):
            Shape (B, T), nats. The advantage must be the same on all loss tokens of a segment.
        segment_ids (`torch.Tensor`):
            Shape (B, T), −1 where a token lies in no segment.
        beta (`float`):
            β > 0.
        weight_cap (`float`, *optional*, defaults to `10.0`):
            Largest importance weight: ours, and the released code's; the paper has none.

    Returns:
        `tuple`: the loss of each segment at its last loss token and 0 elsewhere, and a mask of these tokens; shapes
        (B, T).
    """
    inside = mask_t.bool() & (segment_ids >= 0)
    ends = segment_ends(segment_ids, mask_t=mask_t).bool()
    n_segments = int(segment_ids.max().clamp(min=0)) + 1
    index = torch.where(inside, segment_ids, n_segments)

    def total(x_t: torch.Tensor) -> torch.Tensor:
        kept = torch.where(inside, x_t, 0.0)
        return x_t.new_zeros(x_t.size(0), n_segments + 1).scatter_add(-1, index, kept)

    weight = total((logp_t - old_logp_t).detach()).exp().clamp(max=weight_cap)
    advantage = total(advantage_t * ends)
    loss = weight * (beta * total(logp_t - ref_logp_t) - advantage).square()
    return torch.where(ends, loss.gather(-1, index), 0.0), ends.to(mask_t.dtype)


def segment_ends(segment_ids: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """1 at the last loss token of every segment. Shapes (B, T), the type of `mask_t`; −1 is no segment."""
    inside = mask_t.bool() & (segment_ids >= 0)
    n_segments = int(segment_ids.max().clamp(min=0)) + 1
    index = torch.where(inside, segment_ids, n_segments)
    position = torch.arange(mask_t.size(1), device=mask_t.device).expand_as(index)
    last = torch.full((mask_t.size(0), n_segments + 1), -1, dtype=torch.long, device=mask_t.device)
    last = last.scatter_reduce(-1, index, position, "amax")
    return (inside & (position == last.gather(-1, index))).to(mask_t.dtype)


def _begins_part(rank: torch.Tensor, count: torch.Tensor, parts: int) -> torch.Tensor:
    """Whether item `rank` of `count` begins one of `parts` parts, equal up to one item, the larger first."""
    parts = count.clamp(max=parts, min=1)
    small, larger = count // parts, count % parts
    head = larger * (small + 1)
    in_head = rank % (small + 1) == 0
    in_tail = (rank - head) % small.clamp(min=1) == 0
    return torch.where(rank < head, in_head, in_tail)


def _first(mask_t: torch.Tensor) -> torch.Tensor:
    return mask_t & (mask_t.cumsum(-1) == 1)


def _last(mask_t: torch.Tensor) -> torch.Tensor:
    return mask_t & (mask_t.cumsum(-1) == mask_t.sum(-1, keepdim=True))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
