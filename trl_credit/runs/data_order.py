"""Which rows of its data a run has reached: TRL's order of prompts is determined by the run's identity."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

from trl.trainer.utils import RepeatSampler

from .checkpoints import checkpoint_step, is_complete, last_checkpoint, planned_steps


# what the order of prompts, or the number of those that a step needs, depends on
_ORDER = frozenset("seed shuffle_dataset num_generations generation_batch_size batch_size num_iterations data".split())


def steps_of_weights(folder: str | Path) -> int | None:
    """Optimizer steps that the weights in a folder have had, at most: those of a checkpoint, or all steps that its last
    checkpoint says a run was to make. `None` for a run without a complete checkpoint."""
    if is_complete(folder):
        return checkpoint_step(folder)
    last = last_checkpoint(folder)
    return None if last is None else planned_steps(last)


def rows_reached(record: dict[str, Any], *, steps: int) -> set[int]:
    """The indices of the rows that a run samples for in its first optimizer steps; after an epoch, all rows.

    Args:
        record (`dict`):
            What [`~trl_credit.runs.checkpoints.read_run`] reads.
        steps (`int`):
            Number of optimizer steps.

    Raises:
        ValueError: the order is not known: the data is a stream, or a resume changed what determines the order.
    """
    identity = record["identity"]
    rows = identity["data"].get("rows")
    if rows is None:
        raise ValueError("its data is a stream, whose order is not known")
    if changed := sorted({name for life in record["lives"] for name in life.get("changed", ()) if name in _ORDER}):
        raise ValueError(f"its order of rows is not known, as a resume changed {', '.join(changed)}")
    prompts = identity["generation_batch_size"] // identity["num_generations"]
    samples = identity["generation_batch_size"] * identity["num_iterations"]
    batches = math.ceil(steps * identity["batch_size"] / samples)
    if batches > rows // prompts:
        return set(range(rows))
    order = RepeatSampler(
        range(rows),
        mini_repeat_count=1,
        batch_size=prompts,
        shuffle=identity["shuffle_dataset"],
        seed=identity["seed"],
    )
    return set(islice(order, batches * prompts))
