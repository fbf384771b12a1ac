"""Values and advantages on a tree of sampled segments (SPO-tree, arXiv 2505.23564, Sec. 5).

A level of a tree is a tensor (P, K): the K children of each of its P expanded nodes.
"""

import torch


def backed_up_value(children: torch.Tensor) -> torch.Tensor:
    """V(q) = mean of the values of q's children, each counted once however many leaves it has. Shapes (P, K) → (P,).

    A child that finished early counts as much as one with a whole subtree. This estimate is unbiased; the mean over
    leaves is not. A NaN child (no reward function scored it) does not count; the mean of NaN children is NaN.
    """
    return torch.nanmean(children, dim=1)


def sibling_advantage(children: torch.Tensor, *, kind: str, largest: torch.Tensor | None = None) -> torch.Tensor:
    """A(n) = V(n) − V(q) of each child n of q. Shapes (P, K) → (P, K).

    `mean`: V(q) is the mean of all children, n included (the paper). `loo`: the mean without n, which makes A(n)
    unbiased and K/(K−1) times as large. `std`: divided by the children's population standard deviation + 1e-8. A NaN
    child gets 0, and so does an only child.

    A child as good as the mean gets exactly 0: A below 1e-6 of `largest` is the rounding error of rewards in float32.
    `largest` is the largest |V| of a leaf of the tree, shape (P,); by default that of the children, which may be means
    of rewards that cancel.
    """
    centred = children - backed_up_value(children).unsqueeze(1)
    scored = ~children.isnan()
    largest = children.nan_to_num().abs().amax(1) if largest is None else largest
    centred = torch.where(scored & (centred.abs() > 1e-6 * largest.unsqueeze(1)), centred, 0.0)
    count = scored.sum(1, keepdim=True)
    if kind == "loo":
        return centred * count / (count - 1).clamp(min=1)
    if kind == "std":
        deviation = (centred.square().sum(1, keepdim=True) / count.clamp(min=1)).sqrt()
        return centred / (deviation + 1e-8)
    return centred
