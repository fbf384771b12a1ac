"""Which nodes of a tree share a row that holds branches of several responses."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol


PACKED_LENGTH = 4096  # tokens: an attention mask is a square, which costs more than packing saves beyond this length


class Node(Protocol):
    """What is read of a node of [`~trl_credit.rollouts.tree.Tree`]."""

    segment: Any
    parent: "Node | None"
    children: "list[Node]"


class RowLength:
    """The length of a packed row in tokens while nodes and their ancestors are added. It starts with the prompt."""

    def __init__(self, prompt: int) -> None:
        self.tokens = prompt
        self._nodes: set[int] = set()

    def with_path(self, path: Sequence[Node]) -> int:
        """The length with a path of nodes from the first segment on."""
        new = [node for node in path if id(node) not in self._nodes]
        # a branch that does not follow its parent directly repeats the parent's last token
        repeated = bool(new) and any(id(sibling) in self._nodes for sibling in new[0].parent.children)
        return self.tokens + repeated + sum(len(node.segment.ids) for node in new)

    def add(self, path: Sequence[Node]) -> None:
        """Adds the path."""
        self.tokens = self.with_path(path)
        self._nodes.update(map(id, path))


def groups_within(paths: Sequence[Sequence[Node]], *, prompt: int, limit: int) -> list[list[Node]]:
    """The last nodes of the paths, in order, as rows of at most `limit` tokens, filled one after the other.

    A path that is too long together with its prompt of `prompt` tokens gets its own row.
    """
    groups: list[list[Node]] = []
    row = RowLength(prompt)
    for path in paths:
        if not groups or row.with_path(path) > limit:
            groups.append([])
            row = RowLength(prompt)
        row.add(path)
        groups[-1].append(path[-1])
    return groups


def shortest_groups(paths: Sequence[Sequence[Node]], *, prompt: int, max_rows: int) -> list[list[Node]]:
    """The last nodes of the paths, in order, as at most `max_rows` rows whose longest row is as short as possible.

    Lengths include ancestors that several rows repeat and tokens that a row repeats.
    """
    if not paths:
        return []
    shortest = max(RowLength(prompt).with_path(path) for path in paths)
    longest = prompt + sum(len(node.segment.ids) + 1 for path in paths for node in path)

    def fits(limit: int) -> bool:
        return len(groups_within(paths, prompt=prompt, limit=limit)) <= max_rows

    limit = bisect_left(range(longest), True, lo=shortest, key=fits)
    return groups_within(paths, prompt=prompt, limit=limit)
