"""What a run samples and trains on, in words."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..config import CreditConfig


_ROWS = {"nodes": "of a node each", "paths": "of paths through nodes", "packed": "of several branches each"}


def describe_sampling(args: "CreditConfig", log_history: Sequence[dict[str, Any]] = ()) -> str:
    """What is sampled for a prompt, and what of it is trained on: "8 responses per prompt", but for trees, whose rows
    are no responses.

    Args:
        args ([`CreditConfig`]):
            Its knobs of rollouts are read.
        log_history (sequence of `dict`, *optional*):
            `trainer.state.log_history`: for a tree, how many nodes there were in fact.
    """
    responses = f"{args.num_generations} responses per prompt"
    if args.rollouts == "chain":
        return f"{responses}, with {args.rollouts_per_state} rollouts from where a segment begins"
    if args.rollouts != "tree":
        return responses
    widths = [math.prod(args.tree_branching[: level + 1]) for level in range(len(args.tree_branching))]
    shape = "-".join(map(str, args.tree_branching))
    rows = _ROWS.get(args.tree_rows, f"({args.tree_rows})")
    prompts = args.generation_batch_size // args.num_generations
    text = (
        f"a tree of {shape} per prompt (at most {widths[-1]:,} leaves and {sum(widths):,} nodes); of {prompts:,} "
        f"prompts in a generation batch at most {args.generation_batch_size:,} rows {rows} are trained on"
    )
    sampled, trained = (_mean(log_history, f"credit/{name}") for name in ("nodes", "nodes_trained"))
    if sampled is None or trained is None:
        return text
    return f"{text} (on average {sampled:,.1f} nodes were sampled and {trained:,.1f} trained on)"


def _mean(log_history: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in log_history if row.get(name) is not None]
    return sum(values) / len(values) if values else None
