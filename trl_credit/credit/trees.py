"""Values and advantages on a tree of sampled segments (SPO-tree, arXiv 2505.23564, Sec. 5).

A level is a tensor (P, K): the K children of each of the P nodes that were expanded.
"""

import torch


SIBLING_ADVANTAGES = ("mean", "loo", "std")


def backed_up_value(children: torch.Tensor) -> torch.Tensor:
    """V(q) = mean of the values of q's children, each child counting once however many leaves it has. (P, K) → (P,).

    A child that finished early counts as much as one with a whole subtree: this is the unbiased estimate, while the
    mean over leaves is not. A NaN child (no reward function applied) is left out; NaN where all are.
    """
    return torch.nanmean(children, dim=1)


def sibling_advantage(children: torch.Tensor, *, kind: str = "mean") -> torch.Tensor:
    """A(n) = V(n) − V(q) of each child n among the children of q. Shapes (P, K) → (P, K).

    `mean`: V(q) is the mean of all children, n itself included (the paper). `loo`: n itself left out, which is
    K/(K−1) of it and unbiased. `std`: divided by the children's standard deviation (population) + 1e-8. A NaN child
    gets 0, and so does an only child.

    Raises:
        ValueError: unknown `kind`.
    """
    if kind not in SIBLING_ADVANTAGES:
        raise ValueError(f"kind must be one of {', '.join(map(repr, SIBLING_ADVANTAGES))}, got {kind!r}")
    centred = children - backed_up_value(children).unsqueeze(1)
    scored = ~children.isnan()
    # equal values have no advantage, though their mean may be off by a rounding, which a std would blow up
    high = torch.where(scored, children, -torch.inf).amax(1, keepdim=True)
    low = torch.where(scored, children, torch.inf).amin(1, keepdim=True)
    differ = high - low > 1e-6 * torch.maximum(high.abs(), low.abs())
    centred = torch.where(scored & differ, centred, 0.0)
    count = scored.sum(1, keepdim=True)
    if kind == "loo":
        return centred * count / (count - 1).clamp(min=1)
    if kind == "std":
        deviation = (centred.square().sum(1, keepdim=True) / count.clamp(min=1)).sqrt()
        return centred / (deviation + 1e-8)
    return centred
