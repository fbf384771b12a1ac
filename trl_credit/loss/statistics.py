"""What an algorithm takes of a whole generation batch before it is cut: of all processes, or of rows at hand."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.nn.functional import pad

from ..config.algorithm import Algorithm
from ..config.credit_config import CreditConfig
from ..credit.tokens import BatchTokens, Tokens, as_batch, wide
from ..support.functions import FunctionRaised, errors_named
from ..support.processes import Processes


_FILL = {"segment_ids": -1, "turn_ids": -1}  # 0 for all others
# why a part of a batch may be `None`
_HOW = {
    "logp_t": 'declare needs = ("logps",)',
    "columns": 'declare needs = ("columns",); trees have none',
    "rewards": "a row of a tree is a segment",
    "reward_columns": "a row of a tree is a segment",
}


def over_processes(
    algorithm: Algorithm,
    config: CreditConfig,
    processes: Processes,
    *,
    advantages: torch.Tensor,
    token_ids: torch.Tensor,
    segment_ids: torch.Tensor,
    turn_ids: torch.Tensor,
    group_ids: torch.Tensor,
    mask_t: torch.Tensor,
    logp_t: torch.Tensor | None = None,
    rewards: torch.Tensor | None = None,
    reward_columns: torch.Tensor | None = None,
    columns: list[dict[str, Any]] | None = None,
    is_training: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The statistics of the rows of this process, shape (B, T). Every process computes those of all rows. Collective.

    Args:
        algorithm ([`~trl_credit.config.algorithm.Algorithm`]):
            With `statistics`.
        config ([`CreditConfig`]):
            Read only.
        processes ([`~trl_credit.support.processes.Processes`]):
            The processes of the run. All have as many rows.
        advantages (`torch.Tensor`):
            Shape (B,) or (B, T).
        token_ids, segment_ids, turn_ids, mask_t (`torch.Tensor`):
            Shape (B, T).
        group_ids (`torch.Tensor`):
            A number for each row's prompt, integers, shape (B,).
        logp_t (`torch.Tensor`, *optional*):
            Shape (B, T), nats; NaN where unknown.
        rewards, reward_columns (`torch.Tensor`, *optional*):
            Of the rows of all processes, shapes (N,) and (N, F).
        columns (`list[dict]`, *optional*):
            The columns of the data set of the B rows.
        is_training (`bool`, *optional*, defaults to `True`):
            As in [`~trl_credit.credit.tokens.BatchTokens`].
        seed (`int`, *optional*, defaults to `0`):
            Of the generator, the same on all processes.

    Raises:
        ValueError: the result is no floating tensor of shape (N, T).
        FunctionRaised: the algorithm raised an error.
    """
    rows, length = mask_t.shape
    width = max(1, processes.max(length))
    kind = torch.promote_types(advantages.dtype if logp_t is None else logp_t.dtype, torch.float32)
    parts = {"advantage_t": wide(advantages).expand(rows, length).to(kind), "mask_t": mask_t.to(kind)}
    parts |= {"token_ids": token_ids, "segment_ids": segment_ids, "turn_ids": turn_ids}
    parts |= {} if logp_t is None else {"logp_t": logp_t.to(kind)}
    tables = {n: pad(x.detach(), (0, width - length), value=_FILL.get(n, 0)) for n, x in parts.items()}
    tables["group_ids"] = group_ids.unsqueeze(1).expand(rows, width)  # one call for all
    every = dict(zip(tables, processes.gather_columns(*tables.values()), strict=True))
    every["group_ids"] = every["group_ids"][:, 0].unique(return_inverse=True)[1]
    batch = BatchTokens(
        **every,
        rewards=rewards,
        reward_columns=reward_columns,
        columns=None if columns is None else gather_object(columns),
        is_training=is_training,
        generator=torch.Generator().manual_seed(seed),
    )
    first = processes.rank * rows
    return taken(algorithm, config, batch)[first : first + rows, :length].contiguous()


def with_statistics(algorithm: Algorithm, config: CreditConfig, tokens: Tokens, **rows: Any) -> Tokens:
    """`tokens` as a whole generation batch: with the statistics of the algorithm, if it takes any.

    `rows` are further attributes of [`~trl_credit.credit.tokens.BatchTokens`].
    """
    if algorithm.statistics is None:
        return tokens
    batch = as_batch(tokens, **{"logp_t": tokens.old_logp_t} | rows)
    return replace(tokens, statistics_t=taken(algorithm, config, batch))


def taken(algorithm: Algorithm, config: CreditConfig, batch: BatchTokens) -> torch.Tensor:
    """The checked result of an algorithm's `statistics`, shape (N, T), detached. Raises as [`over_processes`]."""
    mask_t = batch.mask_t
    if "logps" not in algorithm.needs:
        batch = replace(batch, logp_t=None)
    else:
        batch = replace(batch, mask_t=mask_t * batch.logp_t.isfinite(), logp_t=batch.logp_t.detach())
    label = f"the batch statistics of {algorithm.name!r}"
    # of what the function reads, as far as its code tells
    read = getattr(inspect.unwrap(algorithm.statistics), "__code__", None)
    missing = [name for name in _HOW if getattr(batch, name) is None and (read is None or name in read.co_names)]
    try:
        with errors_named(algorithm.source, label), torch.no_grad():
            result = algorithm.statistics(config, batch)
    except FunctionRaised as error:
        if not missing:
            raise
        hints = "; ".join(f"batch.{name} is None: {_HOW[name]}" for name in missing)
        raise FunctionRaised(f"{hints} ({error})") from error
    if not isinstance(result, torch.Tensor) or result.shape != mask_t.shape or not result.is_floating_point():
        is_tensor = isinstance(result, torch.Tensor)
        got = f"{result.dtype} of shape {tuple(result.shape)}" if is_tensor else type(result).__name__
        raise ValueError(f"{label} must be a floating tensor of shape {tuple(mask_t.shape)}; it returned {got}.")
    return result.to(mask_t.device)
