"""Advantages: baselines over a prompt's group of responses, and per-token factors on them."""

from collections.abc import Callable

import torch

from .weights import traced_credit, traced_sum


def group_advantage(rewards: torch.Tensor, *, num_generations: int, scale: bool = True) -> torch.Tensor:
    """A_i = (r_i − mean) / (std + 1e-4) over the group of `num_generations` consecutive responses (GRPO, 2402.03300).

    Shapes (N,) → (N,). `std` is the sample standard deviation (n − 1); `scale=False` leaves it out (Dr.GRPO). A NaN
    reward (no reward function scored the response) does not count in mean and std, and gets advantage 0.
    """
    grouped = by_group(rewards, num_generations)
    scored = ~grouped.isnan()
    count = scored.sum(-1, keepdim=True)
    mean = grouped.nansum(-1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(scored, grouped - mean, 0.0)
    if scale:
        std = (centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (std + 1e-4)
    return centred.flatten()


def optimal_advantage(rewards: torch.Tensor, *, lengths: torch.Tensor, num_generations: int) -> torch.Tensor:
    """A_i = r_i − Σ_j L_j r_j / Σ_j L_j: the length-weighted baseline of OPO (arXiv 2505.23585, Eq. 8), without std.

    It minimises the variance of the gradient if the variance of a response's score is proportional to its length.

    Args:
        rewards (`torch.Tensor`):
            Shape (N,), groups consecutive. NaN (not scored) does not count in the baseline and gets advantage 0.
        lengths (`torch.Tensor`):
            Shape (N,), loss tokens of each response.
        num_generations (`int`):
            Responses per prompt.

    Returns:
        `torch.Tensor`: shape (N,). The baseline of a group without a single token is the plain mean.
    """
    grouped = by_group(rewards, num_generations)
    scored = ~grouped.isnan()
    weight = lengths.to(grouped.dtype).view_as(grouped) * scored
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, scored.to(grouped.dtype))
    baseline = (weight * grouped.nan_to_num()).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.where(scored, grouped - baseline, 0.0).flatten()


def leave_one_out_mean(rewards: torch.Tensor, *, num_generations: int) -> torch.Tensor:
    """V_i = Σ_{j≠i} r_j / (G − 1): the mean reward of the other responses of a group.

    It does not depend on the response itself. Shapes (N,) → (N,). NaN rewards do not count; the result is NaN if no
    other response has a reward.
    """
    grouped = by_group(rewards, num_generations)
    scored = (~grouped.isnan()).to(grouped.dtype)
    filled = grouped.nan_to_num()
    others = scored.sum(-1, keepdim=True) - scored
    return ((filled.sum(-1, keepdim=True) - filled) / others.where(others > 0, torch.nan)).flatten()


def whiten(
    advantages: torch.Tensor,
    *,
    mask_t: torch.Tensor,
    reduce: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
) -> torch.Tensor:
    """Â = (A − mean) / √(var + 1e-8) with mean and sample variance over the tokens of `mask_t`.

    Shapes (B,) or (B, T) → (B, T). `reduce` sums a tensor over processes; it is called twice. Equal advantages become
    0, and so does a single one. Tokens outside the mask are shifted and scaled in the same way.
    """
    advantage_t = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_t.shape)
    x_t, m_t = advantage_t.double() * mask_t, mask_t.double()
    total, count = reduce(torch.stack([x_t.sum(), m_t.sum()]))
    centred = advantage_t.double() - total / count.clamp(min=1)
    (squares,) = reduce((centred.square() * m_t).sum().unsqueeze(0))
    return (centred / (squares / (count - 1).clamp(min=1) + 1e-8).sqrt()).to(advantage_t.dtype)


def trace_loss_weight(direction: str, *, decay: float, style: str = "recent", mask_t: torch.Tensor) -> torch.Tensor:
    """c_t: the factor of GRPO-λ's ε-weight on the loss of token t (arXiv 2510.00194). Shapes (B, T), no gradient.

    `past`: c_t = Σ_{k≤t} tr(t,k), the row sums of the trace (with `recent`, Σ_{l=0}^{t} g^l, as in Sec. 3.2). The paper
    multiplies them by [`confidence_weight`] (App. A.3).
    `future`: c_t = Σ_{l≥t} tr(l,t), its column sums: the coefficient that the ε-trace itself gives on-policy. This is
    how S-trace reads the ε-weight (arXiv 2605.05965, App. D.1).
    Sums run over loss tokens. Since c_t ≥ 0, weighting the clipped loss is the same as weighting the advantage.
    """
    m_t = mask_t.to(torch.float64 if mask_t.dtype == torch.float64 else torch.float32)
    return (traced_sum if direction == "past" else traced_credit)(m_t, decay=decay, style=style)


def confidence_weight(logp_t: torch.Tensor, *, kind: str = "sigmoid", mask_t: torch.Tensor) -> torch.Tensor:
    """f(ℓ_t), the second factor of GRPO-λ's ε-weight (arXiv 2510.00194, App. A.3). Shapes (B, T).

    `kind` is "sigmoid", f = 1 + σ(ℓ − 1), from 1 for a nearly impossible token to 1.27 for a certain one, or "tanh",
    which the paper names as an alternative: f = 1 + tanh(ℓ − 1), from 0 to 0.24. With "_grad" appended f has a
    gradient, else it is detached. Since f ≥ 0, weighting the clipped loss is the same as weighting the advantage.

    `logp_t` holds log-probabilities in nats under the current policy at sampling temperature. f is 1 at masked tokens.
    It is a soft clamp: the paper found it unstable to multiply by ℓ itself. `docs/theory.md` says what is ours.
    """
    name, _, gradient = kind.partition("_")
    logp_t = logp_t.to(torch.promote_types(logp_t.dtype, torch.float32))
    inside = mask_t.bool()
    # padding may hold anything, and 0 times the derivative at NaN is NaN
    x_t = torch.where(inside, logp_t if gradient else logp_t.detach(), 0.0) - 1
    return torch.where(inside, 1 + (torch.sigmoid(x_t) if name == "sigmoid" else torch.tanh(x_t)), 1.0)


def td_upper_bound(eos_probs: torch.Tensor) -> torch.Tensor:
    """b_t = 1 − Π_{k<t} (1 − π(EOS | s_k)) ≥ ΔV(s_t) = V(s_0) − V(s_t), for rewards in [0, 1].

    GRPO-λ (arXiv 2510.00194), Lemma 1. b_t is the probability to end before token t if every state had the π(EOS) of
    this completion. b_0 = 0, and b never falls. It bounds the distance of V(s_0) from the mean value at t over the
    completions that have not ended; the value of a single completion can move further, since one token can decide
    everything without any probability of an end. The product is a sum of logarithms, so probabilities of 1e-9 over
    thousands of tokens are not lost.

    Args:
        eos_probs (`torch.Tensor`):
            π(EOS | s_t), shape (..., T), 0 at tokens that the policy did not write. Values outside [0, 1] are clamped,
            since rounding can take exp(log_softmax) above 1.

    Returns:
        `torch.Tensor`: b, the shape of `eos_probs`, in [0, 1], at least float32.
    """
    eos_probs = eos_probs.to(torch.promote_types(eos_probs.dtype, torch.float32))
    log_survival = torch.log1p(-eos_probs.clamp(0.0, 1.0)).cumsum(-1)
    # the product is over k < t
    before_t = torch.nn.functional.pad(log_survival, (1, 0))[..., :-1]
    return -torch.expm1(before_t)


def by_group(rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Rewards (N,) as (N/G, G), for groups of G = `num_generations` consecutive responses."""
    return rewards.view(-1, num_generations)
