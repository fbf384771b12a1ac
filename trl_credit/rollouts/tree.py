"""A tree of sampled segments per prompt, grown level by level, and its training rows (SPO-tree, arXiv 2505.23564)."""

import math
import random
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, repeat
from typing import Any

import torch

from ..config import CreditConfig
from ..config.segments import best_of
from ..credit.segments import best_of_value
from ..credit.trees import backed_up_value, sibling_advantage
from .policy import Continuation, Policy
from .prompts import prompt_digest
from .replay import Row


PACKED_LENGTH = 4096  # tokens: an attention mask is a square, which costs more than packing saves beyond this length


@dataclass(eq=False)
class Node:
    """A sampled segment; the root of a tree has no tokens. Credit belongs to the node, never to a path."""

    parent: "Node | None" = None
    segment: Continuation = field(default_factory=lambda: Continuation([], None))
    depth: int = 0
    children: list["Node"] = field(default_factory=list)
    truncated: bool = False
    value: float = float("nan")
    correct: float = float("nan")  # the reward of a leaf that measures accuracy
    advantage: float = 0.0
    rewards: list[float] = field(default_factory=list)

    def path(self) -> "list[Node]":
        """The nodes from the first segment to this one."""
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
        """The leaves below this node, in order of their paths."""
        return [self] if not self.children else [leaf for child in self.children for leaf in child.leaves()]

    def mean_correct(self) -> float:
        """Mean of `correct` of the leaves below, backed up like values, each child counted once. NaN if all are NaN."""
        if not self.children:
            return self.correct
        scored = [x for child in self.children if not math.isnan(x := child.mean_correct())]
        return math.fsum(scored) / len(scored) if scored else math.nan


@dataclass(eq=False)
class Tree:
    """A prompt, its row of the data set, and the root of the segments that were sampled after it."""

    example: dict
    prompt_ids: list[int]
    root: Node = field(default_factory=Node)

    def numbers(self) -> dict[Node, int]:
        """The number of each node: its place in `walk`, 0 for the root."""
        return {node: number for number, node in enumerate(self.root.walk())}

    @cached_property
    def question(self) -> str:
        """Key of the prompt in the replay buffer."""
        return prompt_digest(self.prompt_ids)


def grow_trees(trees: Sequence[Tree], policy: Policy, *, branching: Sequence[int], segment_length: int) -> None:
    """Samples all trees at once, in place, by one call of the engine per level.

    A node that ends (end of sequence), or has no tokens left to write, is a leaf at any level. Every other node of an
    inner level gets `branching[level]` children.

    Args:
        trees (sequence of [`Tree`]):
            May be empty on a process that takes part in the calls of others.
        policy ([`Policy`]):
            Continues prefixes. It is called on every level, even without prefixes, as other processes may have some.
        branching (sequence of `int`):
            Children per node, from the root down.
        segment_length (`int`):
            M, tokens of a segment on all levels but the last, whose segments have no such limit.
    """
    frontier = [(tree, tree.root) for tree in trees]
    for level, count in enumerate(branching, 1):
        is_last = level == len(branching)
        open_nodes, prefixes, budgets = [], [], []
        for tree, node in frontier:
            written = node.written()
            left = policy.remaining_budget(len(tree.prompt_ids), len(written))
            node.truncated = left <= 0
            if left > 0:
                open_nodes.append((tree, node))
                prefixes.append(tree.prompt_ids + written)
                budgets.append(left if is_last else min(segment_length, left))
        frontier = []
        segments = iter(policy.continue_prefixes(prefixes, n=count, budgets=budgets))
        for (tree, node), budget in zip(open_nodes, budgets, strict=True):
            for segment in islice(segments, count):
                child = Node(node, segment, node.depth + 1)
                node.children.append(child)
                if not policy.is_finished(segment.ids, budget):
                    child.truncated = is_last
                    frontier.append((tree, child))


def assign_tree_credit(trees: Sequence[Tree], config: CreditConfig) -> None:
    """Writes the value of every node, from the leaves up, and its advantage among its siblings into the node.

    With a process reward of weight α it is A + α A^μ, where A^μ = V^μ(child) − V^μ(parent) for the best of several
    tries. With `process_reward_form="value"` it is V(child) + α A^μ (the paper's form, without a baseline). A child as
    good as its parent has A = A^μ = 0.

    Args:
        trees (sequence of [`Tree`]):
            Trees whose leaves all have a value.
        config ([`CreditConfig`]):
            It has `segment_advantage`, the knobs of the process reward, and `reward_range`, which V^μ maps to [0, 1].
    """
    weight = config.process_reward_weight
    by_shape: defaultdict[tuple[int, int], list[tuple[Node, float]]] = defaultdict(list)
    for tree in trees:
        largest = max((abs(leaf.value) for leaf in tree.root.leaves() if not math.isnan(leaf.value)), default=0.0)
        for node in tree.root.walk():
            if node.children:
                by_shape[-node.depth, len(node.children)].append((node, largest))
    for shape in sorted(by_shape):  # the deepest first
        nodes, largest = zip(*by_shape[shape], strict=True)
        children = torch.tensor([[child.value for child in node.children] for node in nodes])
        values = backed_up_value(children)
        credit = sibling_advantage(children, kind=config.segment_advantage, largest=children.new_tensor(largest))
        if weight != 0.0:
            best = partial(best_of_value, best_of=best_of(config), reward_range=config.reward_range)
            difference = (best(children) - best(values).unsqueeze(1)).masked_fill(credit == 0, 0.0)
            base = credit if config.process_reward_form == "advantage" else children.nan_to_num()
            credit = torch.where(children.isnan(), 0.0, base + weight * difference.nan_to_num())
        for node, value, advantages in zip(nodes, values.tolist(), credit.tolist(), strict=True):
            node.value = value
            for child, advantage in zip(node.children, advantages, strict=True):
                child.advantage = advantage


def response_quarters(node: Node) -> list[int]:
    """Quarter, 0 … 3, of each token of a node, relative to the mean length of the responses through the node."""
    begin = sum(len(above.segment.ids) for above in node.path()[:-1])
    leaves = node.leaves()
    mean = sum(len(leaf.written()) for leaf in leaves) / len(leaves)
    return [int(4 * (begin + i) / mean) for i in range(len(node.segment.ids))]


def is_credited(node: Node, keep_zero: bool) -> bool:
    """Whether rows credit a node: one with tokens and, unless `keep_zero`, an advantage other than 0."""
    return len(node.segment.ids) > 0 and (keep_zero or node.advantage != 0.0)


def training_rows(tree: Tree, *, form: str = "nodes", accuracy: float = math.nan, keep_zero: bool = False) -> list[Row]:
    """Rows that credit each node with an advantage other than 0 exactly once.

    `nodes`: a row per node, with its whole prefix as prompt and its segment as completion. `paths`: the first
    leaf-to-root row through a node credits it. The nodes that a row does not credit are part of its prompt (at the
    start), cut off (at the end), or have segment −1 (in between). Both forms have the same gradient, because equal
    prefixes have equal logits. `keep_zero` also credits nodes with advantage 0.
    """
    ends = tree.root.walk()[1:] if form == "nodes" else tree.root.leaves()
    numbers = tree.numbers()
    rows: list[Row] = []
    seen: set[Node] = set()
    prompts: dict[Node, array] = {}  # by the node that they end with: siblings share theirs
    for path in (node.path() for node in ends):
        candidates = range(len(path) - 1 if form == "nodes" else 0, len(path))
        if not (places := [i for i in candidates if is_credited(path[i], keep_zero) and path[i] not in seen]):
            continue
        seen.update(path[i] for i in places)
        first, end = places[0], places[-1] + 1
        before = path[first - 1] if first else tree.root
        if before not in prompts:
            prompts[before] = array("i", [*tree.prompt_ids, *before.written()])
        tokens = [x for i in range(first, end) for x in _tokens(path[i], i - first if i in places else -1)]
        nodes = tuple(numbers[node] for node in path[:end])
        by_number = {"nodes": nodes, "segment_nodes": nodes[first:]}
        rows.append(Row(tree.question, prompts[before], **_columns(tokens), accuracy=accuracy, **by_number))
    return rows


def packed_rows(tree: Tree, *, max_rows: int, accuracy: float = float("nan"), keep_zero: bool = False) -> list[Row]:
    """At most `max_rows` packed rows of branches, whose longest row is as short as possible.

    Three kinds of tokens are repeated: the prompt, prefixes that several rows share, and one token per branch. A branch
    that does not follow its parent directly begins with a copy of the parent's last token, which predicts its first
    token. `visible_until` hides branches from each other.
    """
    paths = [node.path() for node in tree.root.walk_paths() if is_credited(node, keep_zero)]
    prompt, lengths = len(tree.prompt_ids), [sum(len(node.segment.ids) for node in path) for path in paths]
    groups = partial(groups_within, paths, prompt=prompt)
    # lengths include ancestors that several rows repeat and tokens that a row repeats
    limits = range(prompt + max(lengths, default=0), prompt + sum(lengths) + sum(map(len, paths)) + 1)
    limit = limits[bisect_left(limits, True, key=lambda limit: len(groups(limit=limit)) <= max_rows)]
    return [pack(tree, group, accuracy) for group in groups(limit=limit)]


def groups_within(paths: Sequence[Sequence[Node]], *, prompt: int, limit: int) -> list[list[Node]]:
    """The last nodes of the paths, in order, as rows of at most `limit` tokens, filled one after the other.

    A path that is too long together with its prompt of `prompt` tokens gets its own row.
    """
    groups: list[list[Node]] = []
    tokens, inside = math.inf, set()  # of the last row
    for path in paths:
        more = _added_tokens(path, inside)
        if tokens + more > limit:
            groups.append([])
            tokens, inside = prompt, set()
            more = _added_tokens(path, inside)
        tokens += more
        inside.update(path)
        groups[-1].append(path[-1])
    return groups


def _added_tokens(path: Sequence[Node], inside: set[Node]) -> int:
    """By how many tokens a path lengthens a packed row that holds the nodes `inside`."""
    new = [node for node in path if node not in inside]
    # a branch that does not follow its parent directly repeats the parent's last token
    repeated = bool(new) and not inside.isdisjoint(new[0].parent.children)
    return repeated + sum(len(node.segment.ids) for node in new)


def pack(tree: Tree, credited: list[Node], accuracy: float) -> Row:
    """One row with the credited nodes, given depth first, and their ancestors."""
    segment = {n: -1 for node in credited for n in node.path()} | {node: i for i, node in enumerate(credited)}
    root, prompt = tree.root, list(tree.prompt_ids)
    while len(below := [c for c in root.children if c in segment]) == 1 and segment[below[0]] < 0:
        root = below[0]
        prompt += root.segment.ids  # a shared prefix without credit needs no logits
    tokens, until = [_uncredited(token) for token in prompt], [0] * len(prompt)
    _place_below(root, 0, tokens, until, segment)
    numbers = tree.numbers()
    by_number = {"nodes": tuple(n for node, n in numbers.items() if node in segment)}
    by_number |= {"segment_nodes": tuple(numbers[node] for node in credited), "visible_until": until}
    return Row(tree.question, prompt, **_columns(tokens[len(prompt) :]), accuracy=accuracy, **by_number)


def _place_below(node: Node, begin: int, tokens: list[tuple], until: list[int], segment: dict[Node, int]) -> None:
    """Appends the branches below the last placed node, whose own tokens begin at `begin`, to a packed row.

    `segment` holds the nodes of the row, with −1 for a node without credit. A nested function that calls
    itself would keep the row until Python's next search for cycles.
    """
    last = len(tokens) - 1
    first_ends = None
    for child in (c for c in node.children if c in segment):
        start = len(tokens)
        if first_ends is not None:
            tokens.append(_uncredited(tokens[last][0]))
        tokens.extend(_tokens(child, segment[child]))
        until.extend([0] * (len(tokens) - start))
        _place_below(child, start, tokens, until, segment)
        first_ends = len(tokens) if first_ends is None else first_ends
    until[begin : last + 1] = [len(tokens)] * (last + 1 - begin)
    if first_ends is not None:  # the other branches have their own copy of the last token
        until[last] = first_ends


def _tokens(node: Node, segment: int) -> Iterator[tuple]:
    """(id, advantage, segment, quarter, log-probability) of each token of a node; without credit in segment −1."""
    advantage = node.advantage if segment >= 0 else 0.0
    logps = repeat(None) if node.segment.logps is None else node.segment.logps
    return zip(node.segment.ids, repeat(advantage), repeat(segment), response_quarters(node), logps, strict=False)


def _uncredited(token: int) -> tuple:
    return token, 0.0, -1, -1, math.nan


def _columns(tokens: Sequence[tuple]) -> dict[str, Any]:
    """The fields of a [`Row`] that have a number for each of the tokens that [`_tokens`] gives."""
    ids, advantages, segments, quarters, logps = zip(*tokens, strict=True)
    columns = {"completion_ids": ids, "advantages": advantages, "segments": segments, "quarters": quarters}
    return columns | {"sampling_logps": None if None in logps else logps}


def sample_paths(tree: Tree, n: int, *, seed: str) -> list[Node]:
    """`n` leaves, each distributed like a plain response. The logged rewards of the batch are those of such leaves.

    The root's children take turns; below them siblings are equally likely. Draws depend on `seed` and the prompt, not
    on the process that has the tree.
    """
    rng = random.Random(f"{seed} {tree.question}")
    leaves = []
    for i in range(n):
        node = tree.root
        while node.children:
            node = node.children[i % len(node.children) if node is tree.root else rng.randrange(len(node.children))]
        leaves.append(node)
    return leaves


def with_behavior_logps(policy: Policy, trees: Sequence[Tree], rows: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of all trees with their log-probabilities (nats), measured by packed passes. Collective.

    In the passes each segment of a tree's rows occurs exactly once. A packed row has at most [`PACKED_LENGTH`] tokens,
    and after the prompt at most as many as a micro-batch of the longest completions, so that it takes no more memory. A
    longer path has its own row.

    Args:
        policy ([`Policy`]):
            Makes the passes.
        trees (sequence of [`Tree`]):
            May be empty on a process that takes part in the passes of others.
        rows (sequence of sequences of [`Row`]):
            The rows of each tree, in the form `nodes` or `paths`.
    """
    packed = []
    for tree, own in zip(trees, rows, strict=True):
        numbers, trained = tree.numbers(), {node for row in own for node in row.segment_nodes}
        paths = [n.path() for n in tree.root.walk_paths() if n.segment.ids and numbers[n] in trained]
        longest = max((len(row.completion_ids) for row in own), default=0)
        prompt = len(tree.prompt_ids)
        limit = min(PACKED_LENGTH, prompt + policy.args.per_device_train_batch_size * longest)
        packed.append([pack(tree, group, math.nan) for group in groups_within(paths, prompt=prompt, limit=limit)])
    logps = iter(policy.row_logps([row for part in packed for row in part], at_once=1))
    with_logps = []
    for own, part in zip(rows, packed, strict=True):
        by_node: defaultdict[int, list[float]] = defaultdict(list)
        for row in part:
            for logp, segment in zip(next(logps), row.segments, strict=True):
                if segment >= 0:
                    by_node[row.segment_nodes[segment]].append(logp)
        with_logps += [replace(row, behavior_logps=[x for n in row.segment_nodes for x in by_node[n]]) for row in own]
    return with_logps
