"""The rows of the data set that a batch is sampled from: those of the trainer, drawn by pass rate, or further ones."""

import math
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object

from ..credit.difficulty import group_accuracy
from .policy import Policy
from .prompt_order import PromptOrder
from .prompt_rates import prompt_digest


logger = get_logger(__name__)


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
        self._refills = 0  # of the current batch
        self._warned: set[str] = set()

    def begin(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """This process's rows of a new batch: `inputs`, those of the trainer, or as many drawn by difficulty.
        Collective."""
        self._in_batch, self._prompts, self._last, self._refills = [], set(), [], 0
        if self.order is None:
            return inputs
        if self._policy.args.prompt_sampler == "difficulty":
            return self._further(len(inputs) * self._policy.processes.count // self._policy.group_size)
        mine = [prompt_digest(row.get("prompt")) for row in inputs]
        self._prompts = {digest for part in gather_object([mine]) for digest in part}
        return inputs

    def refill(self, *, useful: int, sampled: int, wanted: int) -> list[dict[str, Any]] | None:
        """This process's rows of further prompts, for a batch of `wanted` groups with signal.

        They are enough if signal stays as frequent as in the `sampled` groups, of which `useful` have some. At most
        `wanted` prompts, with equal shares for all processes. `None` if the batch is full, after `max_refills` calls,
        or where the data has no others.
        """
        most = self._policy.args.max_refills
        if useful >= wanted:
            return None
        if self._refills == most:
            self.warn_once("max_refills=%d further calls did not fill a batch of %d groups", most, wanted)
            return None
        needed = min(wanted, math.ceil((wanted - useful) * sampled / max(useful, 1)))
        unit = self._policy.processes.count // math.gcd(self._policy.processes.count, self._policy.group_size)
        left = self.order.rows - len(self._in_batch)
        if (count := min(math.ceil(needed / unit) * unit, left // unit * unit, wanted)) == 0:
            self.warn_once("the data set has no further prompts for a batch: give more rows, or lower the batch size")
            return None
        self._refills += 1
        return self._further(count)

    def _further(self, groups: int) -> list[dict[str, Any]]:
        """This process's rows of so many further prompts, which the batch does not have while the data has others."""
        processes, size, known = self._policy.processes, self._policy.group_size, []
        self._last = []
        while missing := groups - len(self._last):
            if (left := self.order.rows - len(self._in_batch)) == 0:
                self._last += known[:missing]
                break
            for row in self.order.draw(min(missing, left), besides=self._in_batch):
                (known if self.order.digest(row) in self._prompts else self._last).append(row)
                self._in_batch.append(row)
        share = groups * size // processes.count
        repeated = [row for row in self._last for _ in range(size)]
        return self._policy.data_rows(repeated[processes.rank * share : (processes.rank + 1) * share])

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

    def warn_once(self, message: str, *values: int) -> None:
        """Warns about the groups of the run, each message once."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(f"groups=%r: {message}", self._policy.args.groups, *values)
