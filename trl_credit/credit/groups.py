"""Which groups of responses have signal, and the advantages of a batch whose groups have changed."""

import torch

from .advantages import by_group, group_advantage


def has_difference(values: torch.Tensor, *, num_generations: int) -> torch.Tensor:
    """max_{i∈g} x_i > min_{i∈g} x_i over the responses of each group g: whether they differ.

    With x = correctness this is DAPO's condition 0 < number correct < G (arXiv 2503.14476), which counts truncated
    responses too. It compares values and takes no standard deviation, which rounding may move from 0.

    Args:
        values (`torch.Tensor`):
            x, shape (N,), groups consecutive. NaN (not scored) does not count.
        num_generations (`int`):
            Responses per prompt, G.

    Returns:
        `torch.Tensor`: bool, shape (N/G,). False for a group without two scored responses.
    """
    values = by_group(values, num_generations)
    return values.nan_to_num(-torch.inf).amax(-1) > values.nan_to_num(torch.inf).amin(-1)


def batch_scaled_advantages(rewards: torch.Tensor, *, num_generations: int) -> torch.Tensor:
    """A_i = (r_i − mean r_g) / (std r + 1e-4): TRL's advantages with `scale_rewards="batch"`, std over the whole batch.

    TRL makes them for each call of the engine. A batch whose groups come from several calls, or are copies, has another
    std.

    Args:
        rewards (`torch.Tensor`):
            r, shape (N,), groups consecutive. A NaN reward (not scored) counts nowhere and has the advantage 0.
        num_generations (`int`):
            Responses per prompt, G.

    Returns:
        `torch.Tensor`: shape (N,).
    """
    scored = rewards[~rewards.isnan()]
    std = scored.std() if len(scored) > 1 else rewards.new_zeros(())
    return group_advantage(rewards, num_generations=num_generations, scale=False) / (std + 1e-4)
