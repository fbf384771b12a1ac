"""Which rows of its data a run has reached.

TRL's order of prompts is determined by the run's identity. An order that follows from results is in the run's
`prompt_rates.jsonl`.
"""

import math
from itertools import islice
from pathlib import Path
from typing import Any

from trl.trainer.utils import RepeatSampler

from ..rollouts.prompts import PROMPT_RATES_FILE, read_rates
from .checkpoints import checkpoint_step, is_complete, last_checkpoint, planned_steps


# what the order of prompts, or the number of those that a step needs, depends on
_ORDER = """seed shuffle_dataset num_generations generation_batch_size batch_size num_iterations data
prompt_sampler groups""".split()


def steps_of_weights(folder: str | Path) -> int | None:
    """Optimizer steps that the weights in a folder have had, at most: those of a checkpoint, or all steps that its last
    checkpoint says a run was to make. `None` for a run without a complete checkpoint."""
    if is_complete(folder):
        return checkpoint_step(folder)
    last = last_checkpoint(folder)
    return None if last is None else planned_steps(last)


def rows_reached(record: dict[str, Any], *, steps: int, folder: str | Path = ".") -> set[int]:
    """The indices of the rows that a run samples for in its first optimizer steps; after an epoch, all rows.

    Where pass rates decide which rows come (`prompt_sampler="difficulty"`, `groups="refill"`), these are all rows of
    `prompt_rates.jsonl` that the run sampled for.

    Args:
        record (`dict`):
            What [`~trl_credit.runs.checkpoints.read_run`] reads.
        steps (`int`):
            Number of optimizer steps.
        folder (`str` or `Path`, *optional*, defaults to `"."`):
            Folder of the run or of a checkpoint, for its `prompt_rates.jsonl`.

    Raises:
        ValueError: the order is not known: the data is a stream, a resume changed what determines the order, or there
            is no `prompt_rates.jsonl`, a damaged one, or one of other data.
    """
    identity = record["identity"]
    if (rows := identity["data"].get("rows")) is None:
        raise ValueError("its data is a stream, whose order is not known")
    if changed := sorted({name for start in record["lives"] for name in start.get("changed", {}) if name in _ORDER}):
        raise ValueError(f"its order of rows is not known, as a resume changed {', '.join(changed)}")
    # records of earlier versions lack both settings
    by_difficulty, is_refilled = identity.get("prompt_sampler") == "difficulty", identity.get("groups") == "refill"
    reached = set() if by_difficulty else _rows_in_order(identity, rows=rows, steps=steps)
    if by_difficulty or is_refilled:
        reached |= _rows_by_results(Path(folder) / PROMPT_RATES_FILE, rows=rows)
    return reached


def _rows_by_results(path: Path, *, rows: int) -> set[int]:
    try:
        sampled = {line.row for line in read_rates(path) if line.sampled}
        if sampled and max(sampled) >= rows:
            raise ValueError(f"row {max(sampled)} is not in the data of {rows} rows")
    except (OSError, ValueError) as error:
        raise ValueError(f"its order of rows is not known, as it follows from {path} ({error})") from error
    return sampled


def _rows_in_order(identity: dict[str, Any], *, rows: int, steps: int) -> set[int]:
    prompts = identity["generation_batch_size"] // identity["num_generations"]
    samples = identity["generation_batch_size"] * identity["num_iterations"]
    batches = math.ceil(steps * identity["batch_size"] / samples)
    if batches > rows // prompts:
        return set(range(rows))
    shuffle, seed = identity["shuffle_dataset"], identity["seed"]
    order = RepeatSampler(range(rows), mini_repeat_count=1, batch_size=prompts, shuffle=shuffle, seed=seed)
    return set(islice(order, batches * prompts))
