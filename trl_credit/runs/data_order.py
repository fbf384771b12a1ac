"""Which rows of its data a run has reached.

TRL's order of prompts is determined by the run's identity. An order that follows from results is in the run's
`prompt_rates.jsonl`.
"""

import math
from itertools import islice
from pathlib import Path
from typing import Any

from trl.trainer.utils import RepeatSampler

from ..rollouts.prompt_rates import PROMPT_RATES_FILE, read_rates
from .checkpoints import checkpoint_step, is_complete, last_checkpoint, planned_steps


# what the order of prompts, or the number of those that a step needs, depends on
_ORDER = frozenset("seed shuffle_dataset num_generations generation_batch_size batch_size num_iterations data".split())
_UNKNOWN = "its order of rows is not known"


def steps_of_weights(folder: str | Path) -> int | None:
    """Optimizer steps that the weights in a folder have had, at most: those of a checkpoint, or all steps that its last
    checkpoint says a run was to make. `None` for a run without a complete checkpoint."""
    if is_complete(folder):
        return checkpoint_step(folder)
    last = last_checkpoint(folder)
    return None if last is None else planned_steps(last)


def rows_reached(record: dict[str, Any], *, steps: int, folder: str | Path | None = None) -> set[int]:
    """The indices of the rows that a run samples for in its first optimizer steps; after an epoch, all rows.

    Where pass rates decide which rows come (`prompt_sampler="difficulty"`, `groups="refill"`), these are all rows of
    `prompt_rates.jsonl` that the run sampled for.

    Args:
        record (`dict`):
            What [`~trl_credit.runs.checkpoints.read_run`] reads.
        steps (`int`):
            Number of optimizer steps.
        folder (`str` or `Path`, *optional*):
            Folder of the run or of a checkpoint, for its `prompt_rates.jsonl`.

    Raises:
        ValueError: the order is not known: the data is a stream, a resume changed what determines the order, or there
            is no `prompt_rates.jsonl`, a damaged one, or one of other data.
    """
    identity = record["identity"]
    rows = identity["data"].get("rows")
    if rows is None:
        raise ValueError("its data is a stream, whose order is not known")
    changes = [life.get("changed", {}) for life in record["lives"]]
    samplers = _values(identity, changes, "prompt_sampler", default="data")
    in_order = "data" in samplers
    decisive = _ORDER if in_order else {"data"}
    if changed := sorted({name for change in changes for name in change if name in decisive}):
        raise ValueError(f"{_UNKNOWN}, as a resume changed {', '.join(changed)}")
    found = _rows_in_order(identity, rows=rows, steps=steps) if in_order else set()
    if "difficulty" in samplers or "refill" in _values(identity, changes, "groups", default="keep"):
        found |= _rows_by_results(folder, rows=rows)
    return found


def _values(identity: dict[str, Any], changes: list[dict[str, Any]], name: str, *, default: str) -> list[Any]:
    """Every value that a setting has had in a run. Records of earlier versions lack some settings."""
    found = [identity.get(name), *(value for change in changes for value in change.get(name, ()))]
    return [default if value is None else value for value in found]


def _rows_by_results(folder: str | Path | None, *, rows: int) -> set[int]:
    path = Path(folder or "") / PROMPT_RATES_FILE
    if folder is None or not path.is_file():
        raise ValueError(f"{_UNKNOWN}: it follows from pass rates, and there is no {path}")
    try:
        found = {line.row for line in read_rates(path) if line.sampled}
    except (OSError, ValueError) as error:
        raise ValueError(f"{_UNKNOWN}: {path} cannot be read ({error})") from error
    if found and max(found) >= rows:
        raise ValueError(f"{_UNKNOWN}: {path} has row {max(found)}, and the data {rows} rows")
    return found


def _rows_in_order(identity: dict[str, Any], *, rows: int, steps: int) -> set[int]:
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
