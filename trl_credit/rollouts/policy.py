"""What the sources of a batch ask of a trainer: to sample, to continue, to score, to measure. Types alone."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch


if TYPE_CHECKING:
    from ..config import CreditConfig
    from .replay import Row


class Continuation(NamedTuple):
    """What an engine wrote after a prefix: token ids, their log-probabilities (nats) if it gives any."""

    ids: list[int]
    logps: list[float] | None


class Planned(Protocol):
    """Rows that take the place of what TRL would generate, and what is logged in their place."""

    rows: Sequence["Row"]  # as many as the batch has on this process
    rewards: torch.Tensor  # (N, functions), of the responses that are logged
    logged_texts: list
    logged_advantages: list[float]
    logged_lengths: list[int]
    logged_truncated: list[bool]


class Batch(Protocol):
    """A generation batch of this process: B rows, padded to T tokens, and N rows on all processes.

    What a source may read and set; the trainer's own class has more.

    Attributes:
        rewards: Total rewards (N,) of all processes' rows; NaN where none was given.
        correct: Rewards (N,) that say what is correct; NaN without difficulty weights, or where none was given.
        prompt_ids, completion_ids: Token ids of each row, without padding.
        prompt_width, width: P and T.
        written_t: 1 at all tokens of the response, shape (B, T).
        mask_t: 1 at the tokens that the loss sees, shape (B, T).
        advantages: (B,) or (B, T). TRL's own, until it is set.
        old_logp_t, sampling_logp_t: Shape (B, T), nats, or `None` where they are not known (yet).
        engine_ratio_t: Correction for the engine that sampled, (B, 1) or (B, T), or `None`.
        segment_ids: Shape (B, T), or `None`.
        quarter_t: Quarter of the response, 0 … 3, that each token of a row lies in, −1 where that is not known, shape
            (B, T); `None` where a row is a response.
    """

    rewards: torch.Tensor
    correct: torch.Tensor
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    prompt_width: int
    width: int
    written_t: torch.Tensor
    mask_t: torch.Tensor
    advantages: torch.Tensor
    old_logp_t: torch.Tensor | None
    sampling_logp_t: torch.Tensor | None
    engine_ratio_t: torch.Tensor | None
    segment_ids: torch.Tensor | None
    quarter_t: torch.Tensor | None

    def show_loss(self, tokens_t: torch.Tensor) -> None:
        """Leaves the tokens out of the loss at which `tokens_t`, shape (B, T) or (B, 1), is 0."""

    def branch(self, visible_until: torch.Tensor) -> None:
        """Hands `visible_until`, shape (B, P + T), to the forward passes over these rows."""

    def own_rows(self, x: torch.Tensor) -> torch.Tensor:
        """This process's share of a tensor over all N rows."""


class Policy(Protocol):
    """The policy as it is, behind whatever engine it generates with. [`RolloutEngine`] is one.

    All methods that are marked collective must be called by every process, with equal shapes where they gather.
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

    # batches

    def sample(self, inputs: list[dict[str, Any]], *, planned: Planned | None = None) -> Batch:
        """TRL's batch of rows of the data set, sampled or as planned, with its rewards. Collective."""

    def fill_old_logps(self, batch: Batch) -> None:
        """Computes π_old where TRL skipped that pass. Collective."""

    def row_logps(self, rows: Sequence["Row"], *, at_once: int) -> list[list[float]]:
        """Log-probabilities (nats) of the completions of rows under the policy as it is, by passes over `at_once` of
        them. Collective."""

    def correct_by_segment(self, batch: Batch) -> None:
        """Takes TRL's correction for the engine over each segment in the place of each row."""

    # continuations

    def tokenize(self, prompts: list) -> list[list[int]]: ...

    def decode(self, ids: list[int]) -> str: ...

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list: ...

    def continue_prefixes(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
        """`n` continuations of each prefix, in order. Collective."""

    def score_responses(
        self, examples: list[dict[str, Any]], completion_ids: list[list[int]], *, most: int | None = None
    ) -> torch.Tensor:
        """Rewards by function, shape (n, functions). Collective. `most`: the largest n of a process, if known."""

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Shapes (n, functions) → (n,)."""

    def correct_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Shapes (n, functions) → (n,), of the functions that say what is correct."""

    def remaining_budget(self, prompt_length: int, written: int) -> int: ...

    def is_finished(self, ids: list[int], budget: int) -> bool: ...

    # measures

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all processes. Collective."""

    def largest(self, n: int) -> int:
        """The largest `n` of all processes. Collective."""

    def all_largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of all processes of each number. Collective."""

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs Σ numerators / Σ denominators under `credit/`. Collective, with the same names everywhere."""

    def log_planned(self, planned: Planned) -> None:
        """Puts what is planned to be logged in the place of what TRL logged."""

    def timed(self, phase: str) -> AbstractContextManager[None]: ...
