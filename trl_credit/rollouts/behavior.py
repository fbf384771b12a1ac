"""π_old of new tree rows, by passes over packed rows, which hold the branches of a tree side by side."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..passes.attention import branch_problem
from .packing import PACKED_LENGTH, groups_within
from .policy import Policy
from .replay import Row
from .tree import Tree, pack


# models whose tokens depend on their position in their own branch alone; other models pass their rows one by one
PACKED_MODELS = ("gemma", "llama", "qwen2", "qwen3")


def can_pack(config: Any) -> bool:
    """Whether a model of this configuration gives packed branches the log-probabilities of plain rows."""
    return config.get_text_config().model_type in PACKED_MODELS and branch_problem(config) is None


def packed_passes(tree: Tree, rows: Sequence[Row], *, at_once: int) -> list[Row]:
    """Packed rows that contain each node of a tree's rows once.

    A packed row has at most [`PACKED_LENGTH`] tokens, and after the prompt at most as many as `at_once` of the rows, so
    that a pass over it takes no more memory than a pass over those. A longer response gets its own row.
    """
    numbers, trained = tree.numbers(), {node for row in rows for node in row.segment_nodes}
    paths = [n.path() for n in tree.root.walk_paths() if n.segment.ids and numbers[id(n)] in trained]
    prompt = len(tree.prompt_ids)
    limit = min(PACKED_LENGTH, prompt + at_once * max((len(row.completion_ids) for row in rows), default=0))
    return [pack(tree, group, float("nan")) for group in groups_within(paths, prompt=prompt, limit=limit)]


def with_behavior_logps(policy: Policy, trees: Sequence[Tree], rows: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of all trees with their log-probabilities (nats), measured by packed passes. Collective.

    Args:
        policy ([`Policy`]):
            Makes the passes.
        trees (sequence of [`Tree`]):
            May be empty on a process that takes part in the passes of others.
        rows (sequence of sequences of [`Row`]):
            The rows of each tree, in the form `nodes` or `paths`.
    """
    at_once = policy.args.per_device_train_batch_size
    packed = [packed_passes(tree, own, at_once=at_once) for tree, own in zip(trees, rows, strict=True)]
    logps = iter(policy.row_logps([row for part in packed for row in part], at_once=1))
    found = []
    for own, part in zip(rows, packed, strict=True):
        by_node: defaultdict[int, list[float]] = defaultdict(list)
        for row in part:
            for logp, segment in zip(next(logps), row.segments, strict=True):
                if segment >= 0:
                    by_node[row.segment_nodes[segment]].append(logp)
        found += [replace(row, behavior_logps=[x for node in row.segment_nodes for x in by_node[node]]) for row in own]
    return found
