"""What the sources of a batch need from a trainer: sampling, continuations, scores, measures. Types only."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ..loss.batch import Batch


if TYPE_CHECKING:
    from ..config import CreditConfig
    from .replay import Row


class Continuation(NamedTuple):
    """What an engine wrote after a prefix: token ids, and their log-probabilities (nats) if the engine returns any."""

    ids: list[int]
    logps: list[float] | None


class Planned(Protocol):
    """Rows that replace what TRL would generate, and what is logged for them."""

    rows: Sequence["Row"]  # as many as the batch has on this process
    rewards: torch.Tensor  # (N, functions), of the responses that are logged
    logged_texts: list
    logged_advantages: list[float]
    logged_lengths: list[int]
    logged_truncated: list[bool]


class Policy(Protocol):
    """The current policy, behind any generation engine. [`~trl_credit.trainer.engine.TrlEngine`] implements it.

    Every process must call the methods marked collective, with equal shapes where they gather.
    """

    args: "CreditConfig"
    use_vllm: bool

    @property
    def rank(self) -> int: ...

    @property
    def num_processes(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def group_size(self) -> int:
        """Rows per prompt."""

    # Batches

    def sample(self, inputs: list[dict[str, Any]], *, planned: Planned | None = None) -> Batch:
        """TRL's batch for rows of the data set with its rewards: sampled, or as planned. Collective."""

    def fill_old_logps(self, batch: Batch) -> None:
        """Computes π_old if TRL skipped that pass. Collective."""

    def row_logps(self, rows: Sequence["Row"], *, at_once: int) -> list[list[float]]:
        """Log-probabilities (nats) of the rows' completions under the current policy, `at_once` rows per pass.
        Collective."""

    def correct_by_segment(self, batch: Batch) -> None:
        """Computes TRL's correction for the engine per segment instead of per row."""

    # Continuations

    def tokenize(self, prompts: list) -> list[list[int]]: ...

    def decode(self, ids: list[int]) -> str: ...

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list: ...

    def continue_prefixes(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
        """`n` continuations of each prefix, in order. `label` names the progress bar. Collective."""

    def score_responses(
        self, examples: list[dict[str, Any]], completion_ids: list[list[int]], *, most: int | None = None
    ) -> torch.Tensor:
        """Rewards by function, shape (n, functions). `most`: the largest n of all processes, if known. Collective."""

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Shapes (n, functions) → (n,)."""

    def correct_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Shapes (n, functions) → (n,): the total of the functions that measure accuracy."""

    def remaining_budget(self, prompt_length: int, written: int) -> int:
        """Tokens that may follow `written` tokens of a response."""

    def is_finished(self, ids: list[int], budget: int) -> bool:
        """Whether a continuation ended before its budget did."""

    # Measures

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all processes. Collective."""

    def all_largest(self, numbers: Sequence[int]) -> list[int]:
        """The maximum of each number over all processes. Collective."""

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs Σ numerators / Σ denominators under `credit/`. Collective, with the same names on all processes."""

    def log_planned(self, planned: Planned) -> None:
        """Replaces what TRL logged by the responses of the plan."""

    def timed(self, phase: str) -> AbstractContextManager[None]: ...
