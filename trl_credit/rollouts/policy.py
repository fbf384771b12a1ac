"""What the sources of a batch need from a trainer: sampling, continuations, scores, measures. There are types only."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from ..config import CreditConfig
from ..loss.batch import Batch
from ..support.processes import Processes
from .replay import Row


class Continuation(NamedTuple):
    """What an engine wrote after a prefix: token ids, and their log-probabilities (nats) if the engine returns any."""

    ids: list[int]
    logps: list[float] | None


class LoggedResponse(NamedTuple):
    """A response for TRL's table of completions: its rewards by function, and its length in tokens."""

    rewards: list[float]
    text: Any
    advantage: float
    length: int
    truncated: bool


class Plan(NamedTuple):
    """What a process trains on and logs in one generation batch.

    Attributes:
        rows: The rows of this process; those from `n_real` on are fillers without credit.
        n_real: Number of rows with credit.
        logged: N responses sampled from all processes' trees, in order of prompts.
        accuracy: Mean accuracy of all prompts in [0, 1], NaN if none was scored.
        iteration: Iteration of the replay buffer that drew the rows.
        drawn: The rows with credit of all processes; each process trains on every `num_processes`-th of them.
        trees: The [`~trl_credit.rollouts.tree.Tree`]s that this process grew.
    """

    rows: list[Row]
    n_real: int
    logged: list[LoggedResponse]
    accuracy: float
    iteration: int
    drawn: list[Row]
    trees: list[Any]


class Policy(Protocol):
    """The current policy, behind any generation engine. [`~trl_credit.trainer.engine.TrlEngine`] implements it.

    Every process must call the methods marked collective, with equal shapes where they gather.

    Attributes:
        log: What TRL logs of a batch, a [`~trl_credit.trainer.trl_log.TrlLog`].
        group_size: Rows per prompt.
        pad_token_id: The token that rows are padded with.
        continue_turns: `f(places, *, n, budgets, prompt_ids, completion_ids, most)`, see
            [`~trl_credit.trainer.turn_rollouts.TurnRollouts`]: rewards (states · n, functions) of `n` conversations
            from each (row, b) of `places`, where turns of the last batch begin, and the tokens that were added. `most`:
            the largest number of states of all processes. Collective.
    """

    args: CreditConfig
    processes: Processes
    log: Any
    use_vllm: bool
    group_size: int
    pad_token_id: int
    continue_turns: Callable[..., tuple[torch.Tensor, list[list[int]]]]

    def data_rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Rows of the training data by number, as the data loader gives them: a new `dict` for each."""

    # Batches

    def sample(self, inputs: list[dict[str, Any]], *, planned: Plan | None = None) -> Batch:
        """TRL's batch for rows of the data set with its rewards: sampled, or as planned. Collective."""

    def fill_old_logps(self, batch: Batch) -> None:
        """Computes π_old if TRL skipped that pass. Collective."""

    def row_logps(self, rows: Sequence[Row], *, at_once: int) -> list[list[float]]:
        """Log-probabilities (nats) of the rows' completions under the current policy, `at_once` rows per pass.
        Collective."""

    def correct_by_part(self, batch: Batch, part_ids: torch.Tensor) -> None:
        """Computes TRL's correction for the engine by the parts of a row that `part_ids` (B, T) numbers."""

    # Continuations

    def tokenize(self, prompts: list) -> list[list[int]]: ...

    def decode(self, ids: list[int]) -> str: ...

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list: ...

    def continue_prefixes(self, prefixes: Sequence[list[int]], *, n: int, budgets: list[int]) -> list[Continuation]:
        """`n` continuations of each prefix, in order. Collective."""

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

    def is_finished(self, ids: Sequence[int], budget: int) -> bool:
        """Whether a continuation ended by itself, and was not cut off by its budget."""

    # Measures

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs Σ numerators / Σ denominators under `credit/`. Collective, with the same names on all processes."""

    def timed(self, phase: str) -> AbstractContextManager[None]: ...
