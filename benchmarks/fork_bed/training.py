"""Training on the bed: all learning rates and seeds of an algorithm at once."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from .algorithms import Advantages, Algorithm, boundaries, kept_tokens, selector, token_gradient
from .batch import Batch, chosen, draw, sample
from .bed import Bed, G, P, Setting, V, make_bed
from .teachers import style_share, with_teacher


RATES = (0.02, 0.08, 0.16, 0.32, 0.64, 1.28)
UPDATES = 120
ROLLOUTS = 9


class Adam:
    """Adam (0.9, 0.999, ε = 1e-8) after clipping the gradient's norm to 1, for each run by itself."""

    def __init__(self, like: torch.Tensor, rates: torch.Tensor) -> None:
        self.first, self.second, self.rates, self.count = torch.zeros_like(like), torch.zeros_like(like), rates, 0

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """The change of the weights that ascends along the gradient, both of the shape (runs, D, V)."""
        norm = gradient.flatten(1).norm(dim=1)[:, None, None]
        gradient = gradient / norm.clamp(min=1.0)
        self.count += 1
        self.first.lerp_(gradient, 0.1)
        self.second.lerp_(gradient.square(), 0.001)
        mean = self.first / (1 - 0.9**self.count)
        return self.rates * mean / ((self.second / (1 - 0.999**self.count)).sqrt() + 1e-8)


def train(
    algorithm: Algorithm, setting: Setting, *, rates: tuple[float, ...], seeds: list[int], updates: int = UPDATES
) -> dict[str, Any]:
    """Trains a run for each learning rate and seed.

    Returns:
        `dict`: `solved`, J after each update, shape (updates, rates, seeds); `by_prompt`, the mean of it over updates
        for each prompt, shape (rates, seeds, P); `style`, mean probability of the teachers' unusual action at filler
        after the last update, shape (rates, seeds); `tokens`, generated tokens per update over those of the responses,
        shape (rates,).
    """
    copies = len(rates)
    single = make_bed(setting, seeds)
    bed = Bed(setting, *(part.repeat(copies, *[1] * (part.dim() - 1)) for part in _tensors(single)))
    weights = torch.zeros(bed.runs, bed.features.size(-1), V, dtype=torch.float64)
    optimizer = Adam(weights, torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds))[:, None, None])
    by_prompt, cost = [], []
    next_batch = _sampler(algorithm, bed, seeds, copies)
    log_probs = bed.log_probs(weights)
    for _ in range(-(-updates // algorithm.updates)):
        batch, gradient_of = next_batch(log_probs)
        cost.append(_tokens(algorithm, setting, batch).view(copies, -1).mean(1))
        for _ in range(algorithm.updates):
            weights = weights + optimizer.step(gradient_of(log_probs))
            log_probs = bed.log_probs(weights)
            by_prompt.append(bed.solve_rates(log_probs).view(copies, len(seeds), P))
    solved, style = torch.stack(by_prompt[:updates]), style_share(bed, log_probs).view(copies, -1)
    tokens = sum(cost) / len(cost)
    return {"solved": solved.mean(-1), "by_prompt": solved.mean(0), "style": style, "tokens": tokens}


def _tensors(bed: Bed) -> tuple[torch.Tensor, ...]:
    return bed.features, bed.bias, bed.right, bed.other


def _sampler(
    algorithm: Algorithm, bed: Bed, seeds: list[int], copies: int
) -> Callable[[torch.Tensor], tuple[Batch, Callable[[torch.Tensor], torch.Tensor]]]:
    """A function from log π to its next batch, and to the function from log π to the gradient of the batch's loss."""
    setting = bed.setting
    generators = [torch.Generator().manual_seed(10_000 + seed) for seed in seeds]
    advantages_of = Advantages(algorithm, setting, runs=bed.runs)
    initial_entropy_t = _entropy(bed.bias.log_softmax(-1))
    rollouts, steps = ROLLOUTS if algorithm.values != "group" else 0, count()

    def next_batch(log_probs: torch.Tensor) -> tuple[Batch, Callable[[torch.Tensor], torch.Tensor]]:
        draws = draw(generators, copies=copies, length=setting.length, rollouts=rollouts)
        batch = replace(
            with_teacher(algorithm.teacher, bed, log_probs, sample(bed, log_probs, draws)), step=next(steps)
        )
        advantages, kept_t = advantages_of(batch), kept_tokens(algorithm, setting, batch)
        own = selector(algorithm, initial_entropy_t, draws.selection)
        return batch, lambda current: batch_gradient(algorithm, bed, batch, current, advantages, kept_t, own)

    return next_batch


def batch_gradient(
    algorithm: Algorithm,
    bed: Bed,
    batch: Batch,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    kept_t: torch.Tensor,
    own_selector: Callable | None = None,
) -> torch.Tensor:
    """Gradient of the loss of a batch, averaged over its P·G responses, with respect to W, shape (runs, D, V)."""
    logp_t = chosen(log_probs, batch.actions)
    current = replace(batch, entropy_t=_entropy(log_probs))
    config = algorithm.config
    if own_selector is not None:
        config = _WithSelector(config, own_selector)
    options = {"advantages": advantages, "kept_t": kept_t, "assign": algorithm.assign}
    credit_t = token_gradient(config, current, logp_t=logp_t, **options)
    credit = credit_t.view_as(batch.actions)
    taken = torch.zeros_like(log_probs).scatter_add_(-1, batch.actions.transpose(2, 3), credit.transpose(2, 3))
    gradient = taken - log_probs.exp() * credit.sum(2)[..., None]
    return bed.weight_gradient(gradient) / (P * G)


class _WithSelector:
    """A configuration with another selector function; everything else is read from the configuration."""

    def __init__(self, config: Any, function: Callable) -> None:
        self._config, self._function = config, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def custom_function(self, knob: str) -> Callable | None:
        return self._function if knob == "selector" else self._config.custom_function(knob)


def _entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy at each token of each row, nats, shape (rows, T)."""
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return entropy.unsqueeze(2).expand(-1, -1, G, -1).flatten(0, 2)


def _tokens(algorithm: Algorithm, setting: Setting, batch: Batch) -> torch.Tensor:
    """Tokens of each response, over T: 1, and 9 continuations from where segments begin. Shape (rows,)."""
    if algorithm.values == "group":
        return torch.ones_like(batch.rewards)
    left = torch.arange(setting.length, 0, -1)
    begins = boundaries(algorithm, setting, batch)
    return 1 + ROLLOUTS * (begins * left).sum(-1).double() / setting.length
