"""What an algorithm takes of a whole generation batch before it is cut: of all processes, or of rows at hand."""

from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.nn.functional import pad

from ..config.algorithm import Algorithm
from ..config.credit_config import CreditConfig
from ..credit.tokens import BatchTokens, Tokens, as_batch, wide
from ..support.functions import errors_named
from ..support.processes import Processes
from .assignment import described


def over_processes(algorithm: Algorithm, config: CreditConfig, processes: Processes, own: BatchTokens) -> torch.Tensor:
    """The statistics of the rows of this process, shape (B, T). Every process computes those of all rows. Collective.

    Args:
        algorithm ([`~trl_credit.config.algorithm.Algorithm`]):
            With `statistics`.
        config ([`CreditConfig`]):
            Read only.
        processes ([`~trl_credit.support.processes.Processes`]):
            The processes of the run. All have as many rows.
        own ([`~trl_credit.credit.tokens.BatchTokens`]):
            The B rows of this process. `advantage_t` may have shape (B,), and `group_ids` may be any integers.
            `rewards` and `reward_columns` are those of all processes. The generator has the same seed on all.

    Raises:
        ValueError: the result is no floating tensor of shape (N, T).
        FunctionRaised: the algorithm raised an error.
    """
    rows, length = own.mask_t.shape
    width = max(1, processes.max(length))
    dtype = torch.promote_types(own.advantage_t.dtype if own.logp_t is None else own.logp_t.dtype, torch.float32)
    tables = {"advantage_t": wide(own.advantage_t).expand(rows, length).to(dtype), "mask_t": own.mask_t.to(dtype)}
    tables |= {name: getattr(own, name) for name in ("token_ids", "segment_ids", "turn_ids")}
    logps = {"logp_t": own.logp_t, "teacher_logp_t": own.teacher_logp_t}
    tables |= {name: x.to(dtype) for name, x in logps.items() if x is not None}
    fill = {"segment_ids": -1, "turn_ids": -1}  # 0 for all others
    tables = {name: pad(x.detach(), (0, width - length), value=fill.get(name, 0)) for name, x in tables.items()}
    tables["group_ids"] = own.group_ids.unsqueeze(1).expand(rows, width)  # one call for all
    gathered = dict(zip(tables, processes.gather_columns(*tables.values()), strict=True))
    gathered["group_ids"] = gathered["group_ids"][:, 0].unique(return_inverse=True)[1]
    columns = None if own.columns is None else gather_object(own.columns)
    first = processes.rank * rows
    result = checked_statistics(algorithm, config, replace(own, **gathered, columns=columns))
    return result[first : first + rows, :length].contiguous()


def with_statistics(algorithm: Algorithm, config: CreditConfig, tokens: Tokens, **rows: Any) -> Tokens:
    """`tokens` as a whole generation batch: with the statistics of the algorithm, if it takes any.

    `rows` are further attributes of [`~trl_credit.credit.tokens.BatchTokens`].
    """
    if algorithm.statistics is None:
        return tokens
    batch = as_batch(tokens, **{"logp_t": tokens.old_logp_t} | rows)
    return replace(tokens, statistics_t=checked_statistics(algorithm, config, batch))


def checked_statistics(algorithm: Algorithm, config: CreditConfig, batch: BatchTokens) -> torch.Tensor:
    """The checked result of an algorithm's `statistics`, shape (N, T), detached. Raises as [`over_processes`]."""
    mask_t, logp_t = batch.mask_t, batch.logp_t if "logps" in algorithm.needs else None
    known_t = mask_t if logp_t is None else mask_t * logp_t.isfinite()
    batch = replace(batch, mask_t=known_t, logp_t=None if logp_t is None else logp_t.detach())
    label = f"the batch statistics of {algorithm.name!r}"
    with errors_named(algorithm.source, label), torch.no_grad():
        result = algorithm.statistics(config, batch)
    if not isinstance(result, torch.Tensor) or result.shape != mask_t.shape or not result.is_floating_point():
        rule = f"must be a floating tensor of shape {tuple(mask_t.shape)}"
        raise ValueError(f"{label} {rule}; it returned {described(result)}.")
    return result.to(mask_t.device)
