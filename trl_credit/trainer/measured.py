"""TRL's trainer with what all processes measure together: the lowest layer of ours."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from trl import GRPOTrainer

from ..rewards.watchdog import default_watchdog
from ..rollouts.policy import Planned
from .batches import Batch, replace_last
from .belief import correct_columns
from .engine_calls import Phases
from .metrics import group_statistics, length_statistics, response_hashes
from .nothing_to_learn import NothingToLearn


class MeasuredTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] that logs sums over processes, groups, and the time of phases. Trains as TRL does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._phases = Phases()
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

    def largest(self, n: int) -> int:
        """The largest `n` of all processes; a collective call."""
        return int(self.accelerator.gather(torch.tensor([n], device=self.accelerator.device)).max())

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Adds the seconds inside to those of a phase, less those of phases inside it. Those of evaluations, which are
        no part of a step, are left out."""
        return self._phases.timed(phase) if self.model.training else contextlib.nullcontext()

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs `credit/<name>` = Σ numerators / Σ denominators over all processes, by one collective call.

        All processes must give the same names in the same order. Where a denominator is 0 nothing is logged.
        """
        device = self.accelerator.device
        parts = [torch.as_tensor(part, device=device).detach().float() for pair in stats.values() for part in pair]
        sums = self.accelerator.reduce(torch.stack(parts), reduction="sum").view(-1, 2)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in zip(stats, (sums[:, 0] / sums[:, 1]).tolist(), strict=True):
            metrics[f"credit/{name}"].append(value)  # 0/0 is NaN: no such token, left out of the mean by TRL

    def record_groups(self, batch: Batch, *, credited: torch.Tensor | None = None) -> torch.Tensor:
        """Logs what the groups of responses look like; returns the loss tokens (N,) of each row. Collective.

        `credited` (B,): which responses of this process have a token with an advantage other than 0, where that is not
        decided by whether the rewards of a group differ.
        """
        lengths = self.gather(batch.mask_t.sum(-1))
        hashes = self.gather(response_hashes(batch.data["completion_ids"], pad_token_id=self._tokenizer.pad_token_id))
        credited = None if credited is None else self.gather(credited)
        metrics = self._metrics["train" if self.model.training else "eval"]
        given = {"num_generations": self.group_size, "credited": credited}
        for name, value in group_statistics(batch.rewards, hashes, **given).items():
            metrics[f"credit/{name}"].append(value)
        return lengths

    def log_reward_range(self, rewards: torch.Tensor) -> None:
        """Logs the smallest and the largest total reward of a generation batch, shape (N,), of all processes."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        if not rewards.isnan().all():
            metrics["reward_min"].append(rewards.nan_to_num(nan=torch.inf).min().item())
            metrics["reward_max"].append(rewards.nan_to_num(nan=-torch.inf).max().item())

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
