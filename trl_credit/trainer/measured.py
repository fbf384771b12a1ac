"""TRL's trainer with what all processes measure together: the lowest layer of ours."""

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from trl import GRPOTrainer

from ..rewards.watchdog import default_watchdog
from ..rollouts.policy import Planned
from .batches import replace_last
from .belief import correct_columns
from .engine_calls import Phases
from .metrics import length_statistics
from .nothing_to_learn import NothingToLearn
from .step_sums import StepSums


class MeasuredTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] that logs sums over processes, groups, and the time of phases. Trains as TRL does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._phases = Phases()
        self._step_sums = StepSums()
        super().__init__(*args, **kwargs)
        self._correct = correct_columns(self.args, self.reward_func_names, weights=self.reward_weights.tolist())
        self.add_callback(NothingToLearn(self))

    @property
    def rank(self) -> int:
        """Of this process."""
        return self.accelerator.process_index

    @property
    def num_processes(self) -> int:
        """Of the run."""
        return self.accelerator.num_processes

    @property
    def device(self) -> torch.device:
        """Of this process."""
        return self.accelerator.device

    @property
    def group_size(self) -> int:
        """Rows per prompt in a generation batch."""
        return self.num_generations if self.model.training else self.num_generations_eval

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, in their order. Collective."""
        return self.accelerator.gather(x)

    def sum_over_processes(self, x: torch.Tensor) -> torch.Tensor:
        """Elementwise. Collective."""
        return self.accelerator.reduce(x, reduction="sum")

    def gather_columns(self, *columns: torch.Tensor) -> list[torch.Tensor]:
        """Columns (B,) of all processes' rows, each (N,), by one collective call.

        Integers, booleans, and floating numbers, which travel as they are but for types below float32.
        """
        sent = [_as_integers(column) for column in columns]
        gathered = self.accelerator.gather(torch.stack(sent, 1))
        return [_as_before(gathered[:, i], column.dtype) for i, column in enumerate(columns)]

    def largest(self, n: int) -> int:
        """The largest `n` of all processes; a collective call."""
        return self.all_largest([n])[0]

    def all_largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of all processes of each number; one collective call."""
        mine = torch.tensor([list(numbers)], device=self.accelerator.device)
        return self.accelerator.gather(mine).amax(0).tolist()

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Adds the seconds inside to those of a phase, less those of phases inside it. Those of evaluations, which are
        no part of a step, are left out."""
        return self._phases.timed(phase) if self.model.training else contextlib.nullcontext()

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs `credit/<name>` = Σ numerators / Σ denominators over all processes: in a training step at its end, with
        all others by one collective call, else at once.

        All processes must give the same names in the same order. Where a denominator is 0 nothing is logged.
        """
        device = self.accelerator.device
        parts = [_on_device(part, device) for pair in stats.values() for part in pair]
        sums = torch.stack(parts).view(-1, 2)
        if self._step_sums.is_open and self.model.training:
            self._step_sums.add(stats, sums)
            return
        sums = self.sum_over_processes(sums)
        self._append(zip(stats, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))

    def _append(self, values: Iterable[tuple[str, float]]) -> None:
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in values:
            metrics[f"credit/{name}"].append(value)  # 0/0 is NaN: no such token, left out of the mean by TRL

    def log_reward_range(self, rewards: torch.Tensor) -> None:
        """Logs the smallest and the largest total reward of a generation batch, shape (N,), of all processes."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        low, high = rewards.nan_to_num(nan=torch.inf).amin(), rewards.nan_to_num(nan=-torch.inf).amax()
        low, high = torch.stack([low, high]).tolist()
        if low <= high:  # or there is none
            metrics["reward_min"].append(low)
            metrics["reward_max"].append(high)

    def log_planned(self, planned: Planned) -> None:
        """Puts whole responses in the place of the rows that TRL logged."""
        for name, values in (("completion", planned.logged_texts), ("advantages", planned.logged_advantages)):
            replace_last(self._logs[name], values)
        for name, value in length_statistics(planned.logged_lengths, planned.logged_truncated).items():
            self._metrics["train"][f"completions/{name}"][-1] = value

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the reward functions, shape (N, functions) → (N,); NaN where none of them applies."""
        weighted = rewards_per_func * self.reward_weights.to(rewards_per_func.device)
        return weighted.nansum(1).masked_fill(rewards_per_func.isnan().all(1), torch.nan)

    def correct_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Sum, without weights, of the functions that say what is correct: (N, functions) → (N,); NaN where none of
        them applies, or no difficulty weight asks."""
        chosen = rewards_per_func[:, self._correct]
        return chosen.nansum(1).masked_fill(chosen.isnan().all(1), torch.nan)

    @property
    def correct_names(self) -> list[str]:
        """The reward functions that say what is correct, where their sum is not the total reward."""
        is_total = len(self._correct) == len(self.reward_func_names) and bool((self.reward_weights == 1).all())
        return [] if is_total else [self.reward_func_names[i] for i in self._correct]

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            with self.timed("rewards"):
                return super()._calculate_rewards(*args, **kwargs)
        except BaseException:  # an interrupt too: what still runs in TRL's loop must not end what comes after
            default_watchdog().forget()
            raise

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if torch.is_grad_enabled() else self.timed("passes"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _check_finite(self, rewards_per_func: torch.Tensor) -> None:
        if torch.isinf(rewards_per_func).any():
            column = torch.isinf(rewards_per_func).any(0).nonzero()[0].item()
            raise ValueError(f"reward {self.reward_func_names[column]!r} is infinite: rewards must be finite.")


def _on_device(part: Any, device: torch.device) -> torch.Tensor:
    """A number, or a tensor without dimensions, as float32. A number is filled in there, which waits for nothing."""
    if isinstance(part, torch.Tensor):
        return part.to(device).detach().float()
    return torch.full((), float(part), device=device)


def _as_integers(column: torch.Tensor) -> torch.Tensor:
    if column.dtype == torch.float64:
        return column.view(torch.int64)
    return column.float().view(torch.int32).long() if column.is_floating_point() else column.long()


def _as_before(column: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:
        return column.contiguous().view(dtype)
    return column.int().view(torch.float32).to(dtype) if dtype.is_floating_point else column.to(dtype)
