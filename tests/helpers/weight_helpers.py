"""What training has done to parameters, and what it has logged."""

import math

import torch


def weights(trainer):
    """Copies of the parameters by name."""
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def moved(trainer, before) -> set[str]:
    """Names of the parameters that are not what they were, to the last bit."""
    return {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}


def same_weights(left, right) -> bool:
    return not moved(left, weights(right))


def untimed(log) -> list[dict]:
    """The rows of a log without what depends on the clock."""
    return [{k: x for k, x in row.items() if "time" not in k and "second" not in k} for row in log]


def check_finite(trainer) -> None:
    values = [v for row in trainer.state.log_history for v in row.values() if isinstance(v, float)]
    assert values and all(map(math.isfinite, values))
