"""Gradients of batches for the credit of one algorithm after the other, as projections that keep inner products."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ...support.digests import seed_from
from ...trainer.engine import TrlEngine
from ..explain.segments import batch_of


class Projection:
    """A random map of gradients to `size` numbers.

    Each parameter is cut into pieces of `size` numbers, which are added up with random signs from a seed. The inner
    product of two projections is that of the gradients in expectation, with a standard deviation of at most about
    √(2 / size) of the product of their lengths.

    Args:
        model (`nn.Module`):
            Its trainable parameters count.
        size (`int`, *optional*, defaults to 131,072):
            Numbers of a projection.
        seed (`int`, *optional*, defaults to 0):
            Seed of the signs.
    """

    def __init__(self, model: nn.Module, *, size: int = 2**17, seed: int = 0) -> None:
        self.size, self._seed = size, seed
        self._parameters = [x for x in model.parameters() if x.requires_grad]

    @torch.no_grad()
    def take(self) -> np.ndarray:
        """The projection of the gradients, shape (size,), float32. The gradients are removed."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                flat, signs = parameter.grad.flatten().float().cpu(), torch.Generator()
                signs.manual_seed(seed_from(self._seed, number))
                flat *= torch.randint(0, 2, flat.shape, dtype=torch.int8, generator=signs) * 2 - 1
                pieces = pad(flat, (0, -len(flat) % self.size)).view(-1, self.size)
                # a small parameter does not fill all places
                total += pieces.sum(0, dtype=torch.float64).roll(seed_from(number, self._seed) % self.size)
                parameter.grad = None
        return total.float().numpy()


def gradient_of(
    engine: TrlEngine, responses: Sequence[dict[str, Any]], credit: Sequence[np.ndarray], to: Projection
) -> np.ndarray:
    """Σ_i Σ_t c_it ∇ℓ_it, projected, shape (size,), for credit with an array of shape (T_i,) for each response."""
    size = engine.args.per_device_train_batch_size
    used = [i for i, c in enumerate(credit) if np.any(c)]  # the others have no gradient
    for part in (used[k : k + size] for k in range(0, len(used), size)):
        logp_t = engine.policy_logps(batch_of([responses[i] for i in part], engine).data)
        credit_t = pad_sequence([torch.from_numpy(np.nan_to_num(credit[i])) for i in part], batch_first=True)
        (logp_t * credit_t.to(logp_t)).sum().backward()
    return to.take()
