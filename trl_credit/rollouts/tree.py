"""A tree of sampled segments for each prompt, level by level, and the rows to train on (SPO-tree, 2505.23564)."""

import math
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ..credit.segments import best_of_value
from ..credit.trees import backed_up_value, sibling_advantage
from .packing import shortest_groups
from .policy import Continuation
from .replay import Row, question_key


@dataclass(eq=False)
class Node:
    """A sampled segment. The root of a tree is the node without tokens. Credit lives here, never on a path."""

    parent: "Node | None" = None
    segment: Continuation = field(default_factory=lambda: Continuation([], None))
    depth: int = 0
    children: list["Node"] = field(default_factory=list)
    finished: bool = False
    truncated: bool = False
    value: float = float("nan")
    correct: float = float("nan")  # of a leaf, the reward that says so
    advantage: float = 0.0
    rewards: list[float] = field(default_factory=list)

    def path(self) -> "list[Node]":
        """From the first segment to this one."""
        return [] if self.parent is None else [*self.parent.path(), self]

    def written(self) -> list[int]:
        """Tokens from the end of the prompt to the end of this segment."""
        return [token for node in self.path() for token in node.segment.ids]

    def walk(self) -> "list[Node]":
        """This node and all below it, parents before children."""
        nodes = [self]
        for node in nodes:
            nodes.extend(node.children)
        return nodes

    def walk_paths(self) -> "list[Node]":
        """All nodes below this one, depth first."""
        return [node for child in self.children for node in (child, *child.walk_paths())]

    def leaves(self) -> "list[Node]":
        """In order of their paths."""
        return [self] if not self.children else [leaf for child in self.children for leaf in child.leaves()]

    def mean_correct(self) -> float:
        """Of the leaves below, backed up as values are, each child counting once; NaN where none has any."""
        if not self.children:
            return self.correct
        found = [x for child in self.children if not math.isnan(x := child.mean_correct())]
        return math.fsum(found) / len(found) if found else math.nan


@dataclass(eq=False)
class Tree:
    """A prompt, the row of the data set it came with, and the root of what was sampled after it."""

    example: dict
    prompt_ids: list[int]
    root: Node = field(default_factory=Node)

    def numbers(self) -> dict[int, int]:
        """The number of each node, by its `id`: its place in `walk`, 0 for the root."""
        return {id(node): number for number, node in enumerate(self.root.walk())}


def grow_trees(
    trees: Sequence[Tree],
    *,
    branching: Sequence[int],
    segment_length: int,
    budget: Callable[[int, int], int],
    continue_prefixes: Callable[..., list[Continuation]],
    is_finished: Callable[[list[int], int], bool],
) -> int:
    """Samples all trees at once, one call of `continue_prefixes` per level. Returns how many of them wrote something.

    A node that ends (end of sequence), or has no tokens left to write, is a leaf at whatever level; every other node
    of an inner level gets `branching[level]` children.

    Args:
        trees (sequence of [`Tree`]):
            Grown in place. May be empty on a process that shares its calls with others.
        branching (sequence of `int`):
            Children per node, from the root down.
        segment_length (`int`):
            M, tokens of a segment on all levels but the last, which is free.
        budget (`Callable`):
            `(len(prompt), len(written))` → tokens that may still be written.
        continue_prefixes (`Callable`):
            `(prefixes, n=…, budgets=…)` → `n` continuations of each prefix, in order. Called once per level, without
            prefixes too, since other processes may have some.
        is_finished (`Callable`):
            `(ids, budget)` → whether a segment ended before its budget did.
    """
    frontier = [(tree, tree.root) for tree in trees]
    calls = 0
    for level, count in enumerate(branching):
        is_last = level == len(branching) - 1
        open_nodes, budgets = [], []
        for tree, node in frontier:
            left = budget(len(tree.prompt_ids), len(node.written()))
            if left > 0:
                open_nodes.append((tree, node))
                budgets.append(left if is_last else min(segment_length, left))
            else:
                node.finished = node.truncated = True
        frontier = []
        prefixes = [tree.prompt_ids + node.written() for tree, node in open_nodes]
        segments = continue_prefixes(prefixes, n=count, budgets=budgets)
        calls += bool(segments)
        for i, (tree, node) in enumerate(open_nodes):
            for segment in segments[i * count : (i + 1) * count]:
                child = Node(node, segment, node.depth + 1)
                child.finished = is_finished(segment.ids, budgets[i])
                child.truncated = is_last and not child.finished
                node.children.append(child)
                if not child.finished and not is_last:
                    frontier.append((tree, child))
    return calls


def assign_tree_credit(
    trees: Sequence[Tree],
    *,
    kind: str = "mean",
    process_weight: float = 0.0,
    process_best_of: int = 4,
    process_form: str = "advantage",
    to_unit: Callable[[torch.Tensor], torch.Tensor] = lambda value: value,
) -> None:
    """Values from the leaves up, and the advantage of every node among its siblings, written into the nodes.

    Args:
        trees (sequence of [`Tree`]):
            All leaves have a value.
        kind (`str`, *optional*, defaults to `"mean"`):
            See [`~trl_credit.credit.trees.sibling_advantage`].
        process_weight (`float`, *optional*, defaults to `0.0`):
            α of the process reward: A + α A^μ, where A^μ = V^μ(child) − V^μ(parent) for the best of `process_best_of`
            tries. With `process_form="value"`, V(child) + α A^μ (the paper's form, without a baseline).
        to_unit (`Callable`, *optional*):
            Maps values to [0, 1] for the process reward.
    """
    parents = [node for tree in trees for node in tree.root.walk() if node.children]
    by_depth: dict[tuple[int, int], list[Node]] = {}
    for node in parents:
        by_depth.setdefault((node.depth, len(node.children)), []).append(node)
    for _, nodes in sorted(by_depth.items(), reverse=True, key=lambda item: item[0]):
        children = torch.tensor([[child.value for child in node.children] for node in nodes])
        values = backed_up_value(children)
        credit = sibling_advantage(children, kind=kind)
        if process_weight != 0.0:
            scored = ~children.isnan()
            best, best_parent = (best_of_value(to_unit(v), best_of=process_best_of) for v in (children, values))
            difference = best - best_parent.unsqueeze(1)
            base = credit if process_form == "advantage" else children.nan_to_num()
            credit = torch.where(scored, base + process_weight * difference.nan_to_num(), 0.0)
        for node, value, row in zip(nodes, values.tolist(), credit.tolist(), strict=True):
            node.value = value
            for child, advantage in zip(node.children, row, strict=True):
                child.advantage = advantage


def response_quarters(node: Node) -> list[int]:
    """Quarter, 0 … 3, that each token of a node lies in, of the responses through the node at their mean length."""
    begin = sum(len(above.segment.ids) for above in node.path()[:-1])
    leaves = node.leaves()
    mean = sum(len(n.segment.ids) for leaf in leaves for n in leaf.path()) / len(leaves)
    return [int(4 * (begin + i) / mean) for i in range(len(node.segment.ids))]


def training_rows(
    tree: Tree, *, form: str = "nodes", accuracy: float = float("nan"), keep_zero: bool = False
) -> list[Row]:
    """Rows in which each node with an advantage other than 0 is credited exactly once.

    `nodes`: a row per node, its whole prefix as prompt and its segment as completion. `paths`: each node is credited in
    the first leaf-to-root row through it; what a row does not credit at its start is prompt, at its end is cut off, and
    in between is marked by segment −1. Both have the same gradient, since equal prefixes have equal logits.
    """

    def credited(node: Node) -> bool:
        return len(node.segment.ids) > 0 and (keep_zero or node.advantage != 0.0)

    paths = (
        [node.path() for node in tree.root.walk()[1:] if credited(node)]
        if form == "nodes"
        else [leaf.path() for leaf in tree.root.leaves()]
    )
    question = question_key(tree.prompt_ids)
    number = tree.numbers()
    rows, seen = [], set()
    prompts: dict[int, array] = {}  # by the node they end with: siblings share theirs
    for path in paths:
        own = [node for node in (path[-1:] if form == "nodes" else path) if credited(node) and id(node) not in seen]
        if not own:
            continue
        seen.update(map(id, own))
        first, last = path.index(own[0]), path.index(own[-1])
        span = path[first : last + 1]
        before = path[first - 1] if first else tree.root
        if id(before) not in prompts:
            prompts[id(before)] = array("i", [*tree.prompt_ids, *before.written()])
        is_own = [any(node is mine for mine in own) for node in span]
        lengths = [len(node.segment.ids) for node in span]
        logps = [node.segment.logps for node in span]
        rows.append(
            Row(
                question=question,
                prompt_ids=prompts[id(before)],
                completion_ids=[token for node in span for token in node.segment.ids],
                advantages=[
                    x
                    for node, mine, n in zip(span, is_own, lengths, strict=True)
                    for x in [node.advantage if mine else 0.0] * n
                ],
                segments=[
                    x for i, (mine, n) in enumerate(zip(is_own, lengths, strict=True)) for x in [i if mine else -1] * n
                ],
                accuracy=accuracy,
                quarters=[x for node in span for x in response_quarters(node)],
                sampling_logps=None if logps[0] is None else [x for part in logps for x in part],
                nodes=tuple(number[id(node)] for node in path[: last + 1]),
                segment_nodes=tuple(number[id(node)] for node in span),
            )
        )
    return rows


def packed_rows(tree: Tree, *, max_rows: int, accuracy: float = float("nan"), keep_zero: bool = False) -> list[Row]:
    """At most `max_rows` rows, the longest as short as it can be, in which branches lie one after the other.

    Every token is there once but for the prompt, the prefixes that rows have in common, and one token per branch: a
    branch that does not follow its parent directly begins with the parent's last token again, from which its own first
    token is predicted. `visible_until` keeps branches from seeing each other.
    """
    paths = [n.path() for n in tree.root.walk_paths() if n.segment.ids and (keep_zero or n.advantage != 0.0)]
    groups = shortest_groups(paths, prompt=len(tree.prompt_ids), max_rows=max_rows)
    return [pack(tree, group, accuracy) for group in groups]


def pack(tree: Tree, credited: list[Node], accuracy: float) -> Row:
    """One row with the credited nodes and their ancestors, depth first."""
    mine = set(map(id, credited))
    needed = {id(n) for node in credited for n in node.path()}
    places = tree.numbers()
    own: list[int] = []
    root, prompt = tree.root, list(tree.prompt_ids)
    while len(below := [c for c in root.children if id(c) in needed]) == 1 and id(below[0]) not in mine:
        root = below[0]
        prompt += root.segment.ids  # what all have in common, and none is credited for, needs no logits
    tokens, until = list(prompt), [0] * len(prompt)
    advantages, segments, quarters, logps = [], [], [], []

    def place(node: Node, begin: int) -> None:
        """Lays out the branches below a node whose own tokens begin at `begin`."""
        last = len(tokens) - 1
        first_ends = None
        for number, child in enumerate(c for c in node.children if id(c) in needed):
            start = len(tokens)
            ids, child_logps = child.segment.ids, child.segment.logps
            if number > 0:
                tokens.append(tokens[last])
                advantages.append(0.0)
                segments.append(-1)
                quarters.append(-1)
                logps.append(float("nan"))  # nobody sampled it
            tokens.extend(ids)
            is_mine = id(child) in mine
            advantages.extend([child.advantage if is_mine else 0.0] * len(ids))
            segments.extend([len(own) if is_mine else -1] * len(ids))
            own.extend([places[id(child)]] * is_mine)
            quarters.extend(response_quarters(child))
            logps.extend([0.0] * len(ids) if child_logps is None else child_logps)
            until.extend([0] * (len(tokens) - start))
            place(child, start)
            first_ends = len(tokens) if first_ends is None else first_ends
        until[begin : last + 1] = [len(tokens)] * (last + 1 - begin)
        if first_ends is not None:  # the other branches have their own copy of the last token
            until[last] = first_ends

    place(root, 0)
    return Row(
        question=question_key(tree.prompt_ids),
        prompt_ids=prompt,
        completion_ids=tokens[len(prompt) :],
        advantages=advantages,
        segments=segments,
        accuracy=accuracy,
        quarters=quarters,
        sampling_logps=None if credited[0].segment.logps is None else logps,
        visible_until=until,
        nodes=tuple(places[id(node)] for node in tree.root.walk()[1:] if id(node) in needed),
        segment_nodes=tuple(own),
    )


def sample_paths(tree: Tree, n: int, *, rng: random.Random) -> list[Node]:
    """`n` leaves, each distributed as a plain response: the tree's share of every batch's logged rewards.

    The children of the root take turns; below, every child is as likely as its siblings.
    """
    leaves = []
    for i in range(n):
        node = tree.root
        while node.children:
            at_root = node is tree.root
            node = node.children[i % len(node.children) if at_root else rng.randrange(len(node.children))]
        leaves.append(node)
    return leaves
