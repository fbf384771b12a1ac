"""π_old of new rows of trees, from passes in which the branches of a tree stand side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .attention import check_tree_attention
from .packing import PACKED_LENGTH, groups_within
from .replay import Row
from .tree import Tree, pack


# whose tokens know no position but that in their own branch; a model that is not here has its rows one by one
PACKED_MODELS = ("gemma", "llama", "qwen2", "qwen3")


def can_pack(config: Any) -> bool:
    """Whether a model of this configuration gives branches side by side the log-probabilities of plain rows."""
    if config.get_text_config().model_type not in PACKED_MODELS:
        return False
    try:
        check_tree_attention(config)
    except ValueError:
        return False
    return True


def passes_of(tree: Tree, rows: Sequence[Row], *, at_once: int) -> list[Row]:
    """Packed rows that hold each node of the rows of a tree once.

    None has more than [`PACKED_LENGTH`] tokens, nor more behind the prompt than `at_once` of the rows, so that a pass
    over one takes no more memory than a pass over those; a response that is longer has a row for itself.
    """
    numbers, wanted = tree.numbers(), {node for row in rows for node in row.segment_nodes}
    paths = [n.path() for n in tree.root.walk_paths() if n.segment.ids and numbers[id(n)] in wanted]
    prompt = len(tree.prompt_ids)
    limit = min(PACKED_LENGTH, prompt + at_once * max((len(row.completion_ids) for row in rows), default=0))
    return [pack(tree, group, float("nan")) for group in groups_within(paths, prompt=prompt, limit=limit)]


def with_behavior_logps(
    trees: Sequence[Tree],
    rows: Sequence[Sequence[Row]],
    *,
    at_once: int,
    row_logps: Callable[..., list[Sequence[float]]],
) -> list[Row]:
    """The rows of all trees with their log-probabilities (nats), taken from packed passes. Collective.

    Args:
        trees (sequence of [`Tree`]):
            May be empty on a process that takes part in the passes of others.
        rows (sequence of sequences of [`Row`]):
            Those of each tree, made as `nodes` or `paths`.
        at_once (`int`):
            Rows of a micro-batch.
        row_logps (`Callable`):
            `(rows, at_once=…)` → their log-probabilities, by passes over so many rows at once.
    """
    packed = [passes_of(tree, own, at_once=at_once) for tree, own in zip(trees, rows, strict=True)]
    logps = iter(row_logps([row for part in packed for row in part], at_once=1))
    found = []
    for own, part in zip(rows, packed, strict=True):
        by_node: dict[int, list[float]] = {}
        for row in part:
            for logp, segment in zip(next(logps), row.segments, strict=True):
                if segment >= 0:
                    by_node.setdefault(row.segment_nodes[segment], []).append(logp)
        found += [
            replace(row, behavior_logps=[x for node in row.segment_nodes for x in by_node.get(node, [])]) for row in own
        ]
    return found
