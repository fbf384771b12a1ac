"""The part of a shard that is worth showing where not all of it fits."""

from collections import defaultdict
from typing import Any

from ...observe.schema import Shard


Response = dict[str, Any]


def ranked_groups(shard: Shard) -> list[list[Response]]:
    """The groups of a shard: first those with credit, then those whose rewards differ most. Each begins with its best
    and its worst response, so that a few of them show both."""
    groups: dict[int, list[Response]] = defaultdict(list)
    for response in shard.responses:
        groups[response["group"]].append(response)

    def interest(rows: list[Response]) -> tuple[bool, float]:
        rewards = [row["reward"] for row in rows if row.get("reward") is not None]
        return any(any(row.get("credit") or ()) for row in rows), max(rewards, default=0.0) - min(rewards, default=0.0)

    return [_in_turns(rows) for rows in sorted(groups.values(), key=interest, reverse=True)]


def excerpt(shard: Shard, *, max_tokens: int) -> Shard:
    """The responses of `ranked_groups`, one at least, that have `max_tokens` tokens together, in their logged order."""
    kept: set[tuple[int, int]] = set()
    room = max_tokens
    for response in (row for rows in ranked_groups(shard) for row in rows):
        room -= len(response["tokens"])
        if kept and room < 0:
            break
        kept.add((response["group"], response["index"]))
    responses = [row for row in shard.responses if (row["group"], row["index"]) in kept]
    groups = {group for group, _ in kept}
    return Shard(shard.header, {group: tree for group, tree in shard.trees.items() if group in groups}, responses)


def _in_turns(rows: list[Response]) -> list[Response]:
    """The best, the worst, the second best, the second worst, …"""
    ordered = sorted(rows, key=lambda row: row.get("reward") or 0.0, reverse=True)
    return [ordered[i // 2] if i % 2 == 0 else ordered[-1 - i // 2] for i in range(len(ordered))]
