"""The rows of the data set that a batch is sampled from: those of the trainer, drawn by pass rate, or further ones."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from ..credit.difficulty import group_accuracy
from .policy import Policy
from .prompt_order import PromptOrder
from .prompt_rates import prompt_digest


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
        self._in_batch: list[int] = []  # rows drawn for the current batch, and rows with a prompt that it has
        self._prompts: set[str] = set()  # digests of prompts of the batch that were not drawn here
        self._last: list[int] = []  # rows drawn for the last call of the engine

    def begin(self, inputs: list[dict[str, Any]], waiting: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """This process's rows of a new batch: `inputs`, those of the trainer, or as many drawn by difficulty.

        `waiting` are rows of groups that the batch may take besides. Collective.
        """
        config, processes = self._policy.args, self._policy.processes
        self._in_batch, self._last = [], []
        if self.order is None:
            return inputs
        self._prompts = {prompt_digest(row.get("prompt")) for row in waiting}
        if config.prompt_sampler == "difficulty":
            return self.further(len(inputs) * processes.count // self._policy.group_size)
        mine = [prompt_digest(row.get("prompt")) for row in inputs]
        self._prompts.update(digest for part in gather_object([mine]) for digest in part)
        return inputs

    def further(self, groups: int) -> list[dict[str, Any]]:
        """This process's rows of so many further prompts, which the batch does not have while the data has others."""
        processes, size, passed = self._policy.processes, self._policy.group_size, []
        self._last = []
        while missing := groups - len(self._last):
            if (left := self.order.rows - len(self._in_batch)) == 0:
                self._last += passed[:missing]
                break
            for row in self.order.draw(min(missing, left), besides=self._in_batch):
                known = self.order.digest(row) in self._prompts
                (passed if known else self._last).append(row)
                self._in_batch.append(row)
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
        if self._policy.args.prompt_sampler == "difficulty":
            self._policy.record({name: (value, 1) for name, value in self.order.stats().items()})
