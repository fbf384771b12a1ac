"""What a credit function's `batch_statistics` returns for a generation batch, of all processes or of a single one."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ..config import CreditConfig
from ..config.rules import batch_statistics_of
from ..credit.tokens import BatchTokens, Tokens, as_batch
from ..support.functions import errors_named
from ..support.processes import Processes
from .assignment import wide


def over_processes(
    function: Callable[[CreditConfig, BatchTokens], torch.Tensor],
    config: CreditConfig,
    processes: Processes,
    *,
    logp_t: torch.Tensor,
    advantages: torch.Tensor,
    seed: int,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """The statistics of the rows of this process, shape (B, T). Every process computes those of all rows. Two
    collective calls.

    Args:
        function (`Callable`):
            The `batch_statistics` of a credit function.
        config ([`CreditConfig`]):
            Read only.
        processes ([`~trl_credit.support.processes.Processes`]):
            The processes of the run. All have as many rows.
        logp_t (`torch.Tensor`):
            Shape (B, T), nats; NaN where unknown.
        advantages (`torch.Tensor`):
            Shape (B,) or (B, T).
        seed (`int`):
            Of the generator, the same on all processes.
        mask_t (`torch.Tensor`):
            Shape (B, T).

    Raises:
        ValueError: the result is no floating tensor of shape (N, T).
        FunctionRaised: the function raised an error.
    """
    rows, length = logp_t.shape
    kind = torch.promote_types(logp_t.dtype, torch.float32)
    mine = torch.stack([x.to(kind) for x in (logp_t, wide(advantages).expand_as(logp_t), mask_t)])
    width = processes.max(length)
    gathered = processes.gather(torch.nn.functional.pad(mine, (0, width - length)).transpose(0, 1).contiguous())
    found = _called(function, config, *gathered.unbind(1), seed=seed)
    first = processes.rank * rows
    return found[first : first + rows, :length].contiguous()


def with_statistics(function: Callable, config: CreditConfig, tokens: Tokens, *, seed: int = 0) -> Tokens:
    """`tokens` as a whole generation batch: with the `batch_statistics` of the credit function, if they act."""
    if (statistics := batch_statistics_of(function, config)) is None:
        return tokens
    batch = as_batch(tokens)
    found = _called(statistics, config, tokens.old_logp_t, batch.advantage_t, batch.mask_t, seed=seed)
    return replace(tokens, statistics_t=found)


def _called(
    function: Callable,
    config: CreditConfig,
    logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    mask_t: torch.Tensor,
    *,
    seed: int,
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    batch = BatchTokens(
        logp_t=logp_t.detach(), advantage_t=advantage_t, generator=generator, mask_t=mask_t * logp_t.isfinite()
    )
    name = f"batch_statistics of credit function {config.credit!r}"
    with errors_named(function, name), torch.no_grad():
        found = function(config, batch)
    if not isinstance(found, torch.Tensor) or found.shape != logp_t.shape or not found.is_floating_point():
        got = (
            f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        )
        raise ValueError(f"{name} must return a floating tensor of shape {tuple(logp_t.shape)}; it returned {got}.")
    return found.to(logp_t.device)
