"""Takes groups out of the batches of several engine calls, and joins them to one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from ..credit.tokens import turn_numbers
from ..loss import keys
from ..loss.batch import Batch, loss_mask
from ..loss.batch_rows import Row, join_rows, split_rows
from .policy import Policy
from .sources import GenerationBatch


# what a `GenerationBatch` has for each row besides its batch
_PARTS = ("advantages", "p_hat", "logged", "credited")
_VALUES = ("value_t", "final_value")


@dataclass
class Call:
    """What one call of the engine sampled.

    Attributes:
        made: Its batch, with the credit that was given so far.
        examples: This process's rows of the data set.
        has_signal: Whether each group has signal, of all processes.
        logged: The entries of the table of completions, of all processes.
    """

    made: GenerationBatch
    examples: list[dict[str, Any]]
    has_signal: list[bool]
    logged: list[dict[str, Any]]


def join_groups(
    policy: Policy, calls: Sequence[Call], groups: Sequence[int], *, keeps_old_logps: bool = True
) -> GenerationBatch:
    """The batch of some groups, every process with an equal share of the rows. Collective.

    It has the credit that its groups have. The tokens that the loss divides by are counted again.

    Args:
        policy ([`Policy`]):
            Computes π_old where it must be computed again.
        calls (sequence of [`Call`]):
            Their groups are numbered through, call after call.
        groups (sequence of `int`):
            The groups of the batch in their order; a number that comes twice is a copy.
        keeps_old_logps (`bool`, *optional*, defaults to `True`):
            Whether π_old of a row is the same in every batch. If not, it is computed for the joined one.
    """
    processes, size, device = policy.processes, policy.group_size, policy.processes.device
    # TRL's correction for the engine may have one number per response
    is_per_row = getattr(policy.args, "vllm_importance_sampling_mode", "").startswith("sequence")
    per_row = (keys.ENGINE_RATIO,) if is_per_row and not policy.args.corrects_by_turn else ()
    layout = {"pad_token_id": policy.pad_token_id, "per_row": per_row}
    index = [group * size + i for group in groups for i in range(size)]
    share = len(index) // processes.count
    own = slice(processes.rank * share, (processes.rank + 1) * share)

    known = _taken(policy, calls, set(index), layout)
    rows = [dict(known[number][0]) for number in index]
    if any(keys.TURN_IDS in row for row in rows):  # of calls whose credit left tokens out
        for row in rows:
            row.setdefault(keys.TURN_IDS, turn_numbers(row[keys.COMPLETION_MASK].unsqueeze(0))[0])
    has_old_logps = [keys.OLD_LOGPS in row for row in rows]
    recomputes = any(has_old_logps) and not (keeps_old_logps and all(has_old_logps))
    if recomputes:
        rows = [{name: x for name, x in row.items() if name != keys.OLD_LOGPS} for row in rows]
    data: dict[str, Any] = join_rows(rows[own], **layout, multiple=policy.args.pad_to_multiple_of, device=device)
    parts = {name: data.pop(f"made/{name}", None) for name in (*_PARTS, *_VALUES)}
    data[keys.NUM_ITEMS] = torch.tensor(sum(int(loss_mask(row).sum()) for row in rows), device=device)
    turn_ids = data.get(keys.TURN_IDS)
    rewards = {
        name: torch.cat([getattr(call.made.batch, name) for call in calls])[index]
        for name in ("rewards", "rewards_per_func", "correct")
    }
    batch = Batch(data, **rewards, rank=processes.rank)
    if turn_ids is not None:  # from the mask before credit changed it
        batch.turn_ids = turn_ids
    if recomputes:
        policy.fill_old_logps(batch)
    entries = [entry for call in calls for entry in call.logged]
    policy.log.show([entries[number] for number in index])
    made = GenerationBatch(batch, batch.advantages if parts["advantages"] is None else parts["advantages"])
    made.p_hat, made.logged, made.credited = parts["p_hat"], parts["logged"], parts["credited"]
    if parts["value_t"] is not None:
        made.values = parts["value_t"], parts["final_value"]
    made.examples = [known[number][1] for number in index[own]]
    return made


def _taken(
    policy: Policy, calls: Sequence[Call], wanted: set[int], layout: dict[str, Any]
) -> dict[int, tuple[Row, dict[str, Any]]]:
    """Rows of all processes and calls, numbered through: their entries and their row of the data set. Collective."""
    mine, start = {}, 0
    for call in calls:
        first = start + policy.processes.rank * len(call.examples)
        rows = [i for i in range(len(call.examples)) if first + i in wanted]
        parts = {f"made/{name}": x for name in _PARTS if (x := getattr(call.made, name)) is not None}
        parts |= {f"made/{name}": x for name, x in zip(_VALUES, call.made.values or (), strict=False)}
        entries = split_rows(call.made.batch.data | parts, rows=rows, **layout)
        mine |= {first + i: (row, call.examples[i]) for i, row in zip(rows, entries, strict=True)}
        start += policy.processes.count * len(call.examples)
    return {number: found for part in gather_object([mine]) for number, found in part.items()}
