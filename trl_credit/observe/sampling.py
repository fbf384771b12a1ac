"""What a run samples and trains on, in words."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ..config import CreditConfig


_ROWS = {"nodes": "of a node each", "paths": "of paths through nodes", "packed": "of several branches each"}


def describe_sampling(args: CreditConfig, log_history: Sequence[dict[str, Any]] = ()) -> str:
    """What is sampled for a prompt, such as "8 responses per prompt"; for trees, also how many rows are trained on.

    Args:
        args ([`CreditConfig`]):
            The configuration of the run.
        log_history (sequence of `dict`, *optional*):
            `trainer.state.log_history`: for trees, the number of nodes that were sampled.
    """
    responses = f"{args.num_generations} responses per prompt"
    if args.rollouts == "chain":
        return f"{responses}, with {args.rollouts_per_state} rollouts from the start of a segment"
    if args.rollouts != "tree":
        return responses
    widths = [math.prod(args.tree_branching[: level + 1]) for level in range(len(args.tree_branching))]
    shape, prompts = "-".join(map(str, args.tree_branching)), args.generation_batch_size // args.num_generations
    text = (
        f"a tree of {shape} per prompt (at most {widths[-1]:,} leaves and {sum(widths):,} nodes); of {prompts:,} "
        f"prompts in a generation batch at most {args.generation_batch_size:,} rows {_ROWS[args.tree_rows]} are "
        "trained on"
    )
    sampled, trained = (
        [row[name] for row in log_history if row.get(name) is not None]
        for name in ("credit/nodes", "credit/nodes_trained")
    )
    if not sampled or not trained:
        return text
    return f"{text} (on average {fmean(sampled):,.1f} nodes were sampled and {fmean(trained):,.1f} trained on)"
