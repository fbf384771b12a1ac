"""A_i = (r_i − r̄) / r̄, and 0 where r̄ = 0: a prompt counts more the rarer its right responses are.

MaxRL (arXiv 2602.02710): with rewards 0 and 1 the mean gradient is that of a truncated series of log p(right). r̄ is the
mean of the scored responses of a group; one that was not scored (NaN) has A = 0. Rewards must not be negative.

trl-credit train --algo grpo --baseline examples/algorithms/maxrl.py:maxrl
"""

import torch


def maxrl(rewards: torch.Tensor, *, lengths: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Shapes (N,), (N,) → (N,). Groups are consecutive."""
    grouped = rewards.view(-1, num_generations)
    mean = grouped.nanmean(-1, keepdim=True)
    return torch.where(mean == 0, 0.0, (grouped - mean) / mean).nan_to_num().flatten()
