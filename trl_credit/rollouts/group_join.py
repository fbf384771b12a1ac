"""Takes groups out of the batches of several engine calls, and joins them to one batch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object

from ..credit.tokens import turn_numbers
from ..loss import keys
from ..loss.batch import Batch, loss_mask
from ..loss.batch_rows import join_rows, split_rows
from .group_store import REWARDS, Group
from .policy import Policy
from .sources import GenerationBatch


# what a `GenerationBatch` has for each row besides its batch
_PARTS = ("advantages", "p_hat", "logged", "credited")
_VALUES = ("value_t", "final_value")


class Place(NamedTuple):
    """A group: the number of its call of the engine, and its number there."""

    call: int
    group: int


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


def _layout(policy: Policy) -> dict[str, Any]:
    """How entries are cut into rows. TRL's correction for the engine may have one number per response, and has one per
    token where it is made per turn."""
    is_per_row = getattr(policy.args, "vllm_importance_sampling_mode", "").startswith("sequence")
    is_per_row = is_per_row and not policy.args.corrects_by_turn
    return {"pad_token_id": policy.pad_token_id, "per_row": (keys.ENGINE_RATIO,) if is_per_row else ()}


def take_groups(policy: Policy, calls: Sequence[Call], places: Collection[Place]) -> dict[Place, Group]:
    """Groups of the calls, complete on every process. Collective."""
    size, rank = policy.group_size, policy.processes.rank
    mine: dict[tuple[Place, int], Any] = {}
    for c, call in enumerate(calls):
        count = len(call.examples)
        numbers = [divmod(rank * count + i, size) for i in range(count)]  # a group may begin on one process
        rows = [i for i, (group, _) in enumerate(numbers) if (c, group) in places]
        parts = {f"made/{name}": x for name in _PARTS if (x := getattr(call.made, name)) is not None}
        parts |= {f"made/{name}": x for name, x in zip(_VALUES, call.made.values or (), strict=False)}
        entries = split_rows(call.made.batch.data | parts, rows=rows, **_layout(policy))
        for i, row in zip(rows, entries, strict=True):
            mine[Place(c, numbers[i][0]), numbers[i][1]] = row, call.examples[i]
    everyone = {key: found for part in gather_object([mine]) for key, found in part.items()}
    groups = {}
    for place in sorted(places):
        call, own = calls[place.call], slice(place.group * size, (place.group + 1) * size)
        rows, examples = zip(*(everyone[place, i] for i in range(size)), strict=True)
        rewards = {name: getattr(call.made.batch, name)[own].cpu() for name in REWARDS}
        texts = {"examples": [*examples], "logged": call.logged[own], "born": policy.updates_done}
        groups[place] = Group([*rows], **rewards, **texts)
    return groups


def join_groups(
    policy: Policy, groups: Sequence[Group], *, mixes_policies: bool, keeps_old_logps: bool = True
) -> GenerationBatch:
    """The batch of these groups in their order, every process with an equal share of the rows. Collective.

    It has the credit that its groups have. The tokens that the loss divides by are counted again.

    Args:
        mixes_policies (`bool`):
            Whether an earlier policy sampled some of the groups. If not, and the current one is the one that is
            updated, π_old is left out as TRL leaves it out. If so, it is computed for the groups without it.
    """
    processes = policy.processes
    rows = [dict(row) for group in groups for row in group.rows]
    share = len(rows) // processes.count
    own = slice(processes.rank * share, (processes.rank + 1) * share)
    if any(keys.TURN_IDS in row for row in rows):  # of calls whose credit left tokens out
        for row in rows:
            row.setdefault(keys.TURN_IDS, turn_numbers(row[keys.COMPLETION_MASK].unsqueeze(0))[0])
    old_logps: list[torch.Tensor | None] = []
    if not keeps_old_logps or not all(keys.OLD_LOGPS in row for row in rows):
        old_logps = [row.pop(keys.OLD_LOGPS, None) for row in rows]
    layout = _layout(policy) | {"multiple": policy.args.pad_to_multiple_of, "device": processes.device}
    data: dict[str, Any] = join_rows(rows[own], **layout)
    parts = {name: data.pop(f"made/{name}", None) for name in (*_PARTS, *_VALUES)}
    data[keys.NUM_ITEMS] = torch.tensor(sum(int(loss_mask(row).sum()) for row in rows), device=processes.device)
    turn_ids = data.get(keys.TURN_IDS)
    rewards = {name: torch.cat([getattr(group, name) for group in groups]).to(processes.device) for name in REWARDS}
    batch = Batch(data, **rewards, rank=processes.rank)
    if turn_ids is not None:  # from the mask before credit changed it
        batch.turn_ids = turn_ids
    if any(x is not None for x in old_logps) and (mixes_policies or not keeps_old_logps):
        policy.fill_old_logps(batch)
    if mixes_policies and old_logps:
        for old_t, known in zip(batch.old_logp_t, old_logps[own], strict=True):
            if known is not None:
                old_t[: len(known)] = known.to(old_t)
    made = GenerationBatch(batch, batch.advantages if parts["advantages"] is None else parts["advantages"])
    made.p_hat, made.logged, made.credited = parts["p_hat"], parts["logged"], parts["credited"]
    if parts["value_t"] is not None:
        made.values = parts["value_t"], parts["final_value"]
    made.examples = [example for group in groups for example in group.examples][own]
    return made
