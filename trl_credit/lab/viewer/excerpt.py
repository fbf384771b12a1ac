"""Which response of a step to look at first, and the part of a shard to show where not all of it fits."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import pstdev
from typing import Any

from ...observe.schema import Shard


Response = dict[str, Any]


def opening_response(shards: Sequence[Shard]) -> dict[str, int] | None:
    """The `group` and `index` of the response of a step that is shown first, `None` if no response has credit: of the
    first of [`ranked_groups`], the response with the largest Σ |credit| in the first shard that credits the group.

    Args:
        shards (list of `Shard`):
            The shards of one step, by algorithm.
    """
    best = next(iter(ranked_groups(shards)), [])
    for shard in shards:
        rows = [row for row in shard.responses if row["group"] == best[0]["group"]] if best else []
        if _has_credit(rows):
            row = max(rows, key=lambda row: sum(abs(x) for x in row.get("credit") or () if x is not None))
            return {"group": row["group"], "index": row["index"]}
    return None


def ranked_groups(shards: Sequence[Shard]) -> list[list[Response]]:
    """The groups of a step: first those with credit, then those with a tree, then those whose rewards have the largest
    standard deviation, for without a reward difference there is nothing to see. Each begins with its best and its worst
    response, so that a few of them show both.

    Args:
        shards (list of `Shard`):
            The shards of one step, by algorithm.
    """
    groups: dict[int, list[Response]] = defaultdict(list)
    for response in (response for shard in shards for response in shard.responses):
        groups[response["group"]].append(response)
    with_tree = {group for shard in shards for group in shard.trees}

    def interest(rows: list[Response]) -> tuple[bool, bool, float]:
        rewards = [x for row in rows if (x := _reward(row)) is not None]
        return _has_credit(rows), rows[0]["group"] in with_tree, pstdev(rewards or [0.0])

    return [_in_turns(rows) for rows in sorted(groups.values(), key=interest, reverse=True)]


def excerpt(shard: Shard, *, max_tokens: int) -> Shard:
    """The responses of `ranked_groups`, one at least, that have `max_tokens` tokens together, in their logged order."""
    kept: set[tuple[int, int]] = set()
    room = max_tokens
    for response in (row for rows in ranked_groups([shard]) for row in rows):
        room -= len(response["tokens"])
        if kept and room < 0:
            break
        kept.add((response["group"], response["index"]))
    responses = [row for row in shard.responses if (row["group"], row["index"]) in kept]
    groups = {group for group, _ in kept}
    return Shard(shard.header, {group: tree for group, tree in shard.trees.items() if group in groups}, responses)


def _has_credit(rows: Sequence[Response]) -> bool:
    return any(any(row.get("credit") or ()) for row in rows)


def _reward(row: Response) -> float | None:
    reward = row.get("reward")
    return reward if isinstance(reward, (int, float)) and math.isfinite(reward) else None


def _in_turns(rows: list[Response]) -> list[Response]:
    """The best, the worst, the second best, the second worst, …"""
    ordered = sorted(rows, key=lambda row: _reward(row) or 0.0, reverse=True)
    return [ordered[i // 2] if i % 2 == 0 else ordered[-1 - i // 2] for i in range(len(ordered))]
