"""Which nodes of a tree lie in one row, where the branches of several responses do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .tree import Node


PACKED_LENGTH = 4096  # tokens: where attention takes a mask it is a square, which costs more beyond it than is saved


class RowLength:
    """Tokens of a packed row, `prompt` of which are its prompt's, while nodes are put into it with their ancestors."""

    def __init__(self, prompt: int) -> None:
        self.tokens = prompt
        self._held: set[int] = set()
        self._parents: set[int] = set()  # those of what is held

    def beside(self, path: "Sequence[Node]") -> int:
        """Tokens with a path of a node from the first segment on, in addition to what is there."""
        new = [node for node in path if id(node) not in self._held]
        # a branch that does not follow its parent directly begins with the parent's last token again
        again = bool(new) and id(new[0].parent) in self._parents
        return self.tokens + again + sum(len(node.segment.ids) for node in new)

    def add(self, path: "Sequence[Node]") -> None:
        """Puts the path in."""
        self.tokens = self.beside(path)
        self._held.update(map(id, path))
        self._parents.update(id(node.parent) for node in path)


def groups_within(paths: "Sequence[Sequence[Node]]", *, prompt: int, limit: int) -> "list[list[Node]]":
    """The nodes at the ends of paths, in their order, as rows of at most `limit` tokens, one filled after the other.

    A path that is longer with its prompt of `prompt` tokens has a row for itself.
    """
    groups: list[list[Node]] = []
    row = RowLength(prompt)
    for path in paths:
        if not groups or row.beside(path) > limit:
            groups.append([])
            row = RowLength(prompt)
        row.add(path)
        groups[-1].append(path[-1])
    return groups


def shortest_groups(paths: "Sequence[Sequence[Node]]", *, prompt: int, max_rows: int) -> "list[list[Node]]":
    """The nodes at the ends of paths, in their order, as at most `max_rows` rows.

    No other cuts make the longest row shorter, all that is in a row counted: ancestors that other rows have too, and
    what stands in it twice.
    """
    if not paths:
        return []
    whole = RowLength(prompt)
    for path in paths:
        whole.add(path)
    low, high = max(RowLength(prompt).beside(path) for path in paths), whole.tokens
    while low < high:
        middle = (low + high) // 2
        if len(groups_within(paths, prompt=prompt, limit=middle)) <= max_rows:
            high = middle
        else:
            low = middle + 1
    return groups_within(paths, prompt=prompt, limit=high)
