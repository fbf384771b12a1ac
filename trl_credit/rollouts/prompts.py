"""The rows of the data set that a batch is sampled from: those of the trainer, drawn by pass rate, or further ones."""

import math
from typing import Any

import torch

from ..credit.difficulty import group_accuracy
from .policy import Policy
from .prompt_order import PromptOrder


class Prompts:
    """Rows of the data set for a policy, every prompt repeated `group_size` times, in equal shares for all processes.

    Args:
        policy ([`Policy`]):
            Reads the rows.
        order ([`PromptOrder`] or `None`):
            Draws their numbers; `None` if all rows come from the trainer.
    """

    def __init__(self, policy: Policy, order: PromptOrder | None) -> None:
        self._policy, self.order = policy, order
        self.stateful: tuple[Any, ...] = () if order is None else (order,)
        self._in_batch: list[int] = []  # rows drawn for the current batch
        self._last: list[int] = []  # and for its last call of the engine

    def begin(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """This process's rows of a new batch: `inputs`, those of the trainer, or as many drawn by difficulty."""
        self._in_batch, self._last = [], []
        if self._policy.args.prompt_sampler == "data":
            return inputs
        return self.further(len(inputs) * self._policy.processes.count // self._policy.group_size)

    def further(self, groups: int) -> list[dict[str, Any]]:
        """This process's rows of so many further prompts that the batch does not have from here."""
        processes, size = self._policy.processes, self._policy.group_size
        self._last = self.order.draw(groups, besides=self._in_batch)
        self._in_batch += self._last
        share = groups * size // processes.count
        repeated = [row for row in self._last for _ in range(size)]
        return self._policy.data_rows(repeated[processes.rank * share : (processes.rank + 1) * share])

    def available(self, wanted: int) -> int:
        """How many groups at most, up to `wanted`, can be drawn and shared equally by the processes."""
        count, size = self._policy.processes.count, self._policy.group_size
        unit = count // math.gcd(count, size)
        left = self.order.rows - len(self._in_batch)
        return min(-(-wanted // unit), left // unit) * unit

    def note(self, correct: torch.Tensor) -> None:
        """Takes the pass rates of the prompts drawn last from the correctness (N,) of their responses, NaN if unknown.

        A refill without the sampler notes no rates, only that the rows were sampled: `reward_range` does not act there.
        """
        if self._last:
            config = self._policy.args
            correct = correct if config.prompt_sampler == "difficulty" else torch.full_like(correct, math.nan)
            size = len(correct) // len(self._last)
            rates = group_accuracy(correct, num_generations=size, reward_range=config.reward_range)
            self.order.note(self._last, rates.tolist())

    def record(self) -> None:
        """Logs what the order knows of the data set. Collective outside of a training step."""
        if self.order is not None:
            self._policy.record({name: (value, 1) for name, value in self.order.stats().items()})
