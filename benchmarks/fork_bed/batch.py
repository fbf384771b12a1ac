"""A batch of responses: sampled from common random numbers, with exact values of all prefixes."""

from dataclasses import dataclass

import torch

from .bed import Bed, G, P


@dataclass(frozen=True)
class Batch:
    """Responses of all runs; a row is a response, and the G rows of a prompt stand together.

    Attributes:
        actions: int64, shape (runs, P, G, T).
        rewards: Shape (rows,).
        old_logp_t: log π_old of the actions, shape (rows, T), nats.
        entropy_t: Shape (rows, T), nats.
        value_t: Exact value of the state before each token, shape (rows, T).
        rollout_t: Value of the same states by 9 rollouts, shape (rows, T).
        teacher_logp_t: log πᵀ of the actions, shape (rows, T), nats, or `None` without a teacher.
        step: Batches before this one.
    """

    actions: torch.Tensor
    rewards: torch.Tensor
    old_logp_t: torch.Tensor
    entropy_t: torch.Tensor
    value_t: torch.Tensor
    rollout_t: torch.Tensor | None
    teacher_logp_t: torch.Tensor | None = None
    step: int = 0


@dataclass(frozen=True)
class Draws:
    """Random numbers of an update: the same for all algorithms and learning rates of a seed.

    Attributes:
        actions: Uniform, shape (runs, P, G, T).
        rollouts: Uniform, shape (9, rows, T), or `None`.
        selection: Uniform, shape (rows, T), for the random selector.
    """

    actions: torch.Tensor
    rollouts: torch.Tensor | None
    selection: torch.Tensor


def draw(generators: list[torch.Generator], *, copies: int, length: int, rollouts: int) -> Draws:
    """The next random numbers of each seed, `copies` times (a run of each learning rate)."""
    rows = []
    for generator in generators:
        # always drawn in full, so that algorithms with and without rollouts see the same responses
        numbers = torch.rand(2 + 9, P * G, length, generator=generator, dtype=torch.float32).double()
        rows.append(numbers)
    # (2 + rollouts, runs, rows of a run, T), rates outermost
    numbers = torch.stack(rows, 1)[: 2 + rollouts].repeat(1, copies, 1, 1)
    runs = numbers.size(1)
    values = numbers[2:].flatten(1, 2) if rollouts else None
    return Draws(numbers[0].view(runs, P, G, length), values, numbers[1].flatten(0, 1))


def sample(bed: Bed, log_probs: torch.Tensor, draws: Draws) -> Batch:
    """Responses by inverting the distribution function, their rewards, entropies and values."""
    probs = log_probs.exp()
    reached = probs.cumsum(-1)[..., :-1].unsqueeze(2)  # the last action needs no bound
    actions = (draws.actions[..., None] > reached).sum(-1)
    logp_t = chosen(log_probs, actions)
    entropy = -(probs * log_probs).sum(-1).unsqueeze(2).expand_as(actions)
    is_right = actions[..., bed.setting.forks] == bed.right.unsqueeze(2)
    value = prefix_values(bed, log_probs, is_right).flatten(0, 2)
    rolled = None if draws.rollouts is None else (draws.rollouts < value).double().mean(0)
    rewards = is_right.all(-1).double().flatten()
    return Batch(actions, rewards, logp_t, entropy.flatten(0, 2), value, rolled)


def chosen(log_probs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Of all actions' log-probabilities those of the actions taken.

    Shapes (runs, P, T, V), (runs, P, G, T) → (rows, T).
    """
    each = log_probs.unsqueeze(2).expand(-1, -1, G, -1, -1)
    return each.gather(-1, actions[..., None])[..., 0].flatten(0, 2)


def prefix_values(bed: Bed, log_probs: torch.Tensor, is_right: torch.Tensor) -> torch.Tensor:
    """V of the state before each token: 0 after a wrong fork, else the product over the forks to come.

    Shapes (runs, P, G, K) of `is_right` → (runs, P, G, T).
    """
    probs = bed.right_probs(log_probs)
    still = torch.cat([torch.ones_like(probs[..., :1]), probs.flip(-1).cumprod(-1)], -1).flip(-1)  # from fork k on
    alive = torch.cat([torch.ones_like(is_right[..., :1]), is_right.int().cumprod(-1).bool()], -1)
    passed = torch.bucketize(torch.arange(bed.setting.length), bed.setting.forks)  # forks before each token
    return (alive * still.unsqueeze(2))[..., passed]
