"""What a run logged: its score by optimizer steps, prompts, tokens and seconds, from its last checkpoint."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...runs.checkpoints import last_checkpoint, read_run
from ...runs.identity import row_identity
from ...support.errors import choose, one_line
from ...support.files import read_json


Record = dict[str, Any]  # fields of a file of a run, or of one of its rows
# what a curve may be drawn against, and what is counted (docs/compare.md)
AXES = {
    "steps": "optimizer steps",
    "prompts": "prompts",
    "generated": "generated tokens",
    "trained": "trained tokens",
    "seconds": "seconds of training",
}
# fields that differ between the runs of one algorithm; of the modules a second run may have more loaded from the start
_SEED_FIELDS = ("seed", "data_seed", "data", "modules")


@dataclass(frozen=True)
class History:
    """The log of one run.

    Attributes:
        folder: Folder of the run.
        identity: See [`~trl_credit.runs.identity.identity`].
        values: The score at each point, shape (points,).
        axes: The position of each point on each of `AXES` that the log tells, shape (points,).
        totals: The position at the end of the log on each of these.
        planned: Optimizer steps that were planned.
        record: The content of its `credit_run.json`.
        name: The name that the user gave it, "" without.
        norms: The norms of its gradients that it logged.
    """

    folder: Path
    identity: Record
    values: np.ndarray
    axes: dict[str, np.ndarray]
    totals: dict[str, float]
    planned: int
    record: Record
    name: str = ""
    norms: tuple[float, ...] = ()

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.identity["seed"])

    @property
    def credit(self) -> Record:
        """Name and settings of custom credit, empty without."""
        return self.record.get("credit", {})

    @property
    def settings(self) -> Record:
        """The identity without the fields that differ between runs of one algorithm."""
        identity = row_identity({**self.record, "identity": self.identity})
        return {name: value for name, value in identity.items() if name not in _SEED_FIELDS}

    @property
    def is_plain(self) -> bool:
        """Whether trainer, credit and all functions beside rewards are the package's own."""
        is_digest = [str(value).startswith("SHA-256") for value in self.identity.values()]
        return not (self.record.get("trainer") or self.credit.get("is_own") or any(is_digest))

    @property
    def is_finished(self) -> bool:
        """Whether the log reaches the run's last step."""
        return self.totals["steps"] >= self.planned

    @property
    def progress(self) -> str:
        """Its folder, and how far its log reaches: "out/grpo (10 of 200 steps)"."""
        return f"{self.folder} ({self.totals['steps']:,.0f} of {self.planned:,} steps)"

    def mean(self, axis: str, limit: float, *, start: float = -1.0) -> float:
        """Mean score between two positions on an axis; without a point there, the last score before it, else the
        first."""
        x = self.axes[axis]
        inside = (x > start) & (x <= limit * (1 + 1e-9))
        if inside.any():
            return float(self.values[inside].mean())
        return float(self.values[max(np.searchsorted(x, limit, side="right") - 1, 0)])

    def at(self, axis: str, limit: float) -> float:
        """Mean score over the last tenth of the way to `limit`."""
        return self.mean(axis, limit, start=0.9 * limit)


def read_history(folder: str | Path, *, metric: str = "reward", name: str = "") -> History:
    """The log that `trl-credit train` or a trainer of this package left in a folder.

    Args:
        folder (`str` or `Path`):
            `output_dir` of the run.
        metric (`str`, *optional*, defaults to `"reward"`):
            Any logged number, such as `eval_math500/avg@4`.
        name (`str`, *optional*):
            The name that the user gives the run.

    Raises:
        ValueError: the folder holds no run with a complete checkpoint, or the log has no such metric.
    """
    folder = Path(folder)
    record = read_run(folder)
    checkpoint = None if record is None else last_checkpoint(folder)
    if checkpoint is None:
        lacks = "credit_run.json" if record is None else "complete checkpoint"
        fix = "name the output_dir of a run of trl_credit with save_strategy='steps'"
        raise ValueError(f"{str(folder)!r} has no {lacks}: {fix}")
    state = read_json(checkpoint / "trainer_state.json")
    try:
        history = make_history(state, record["identity"], folder=folder, metric=metric, record=record)
        return replace(history, name=name)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"the log in {checkpoint} is damaged, or of another trainer ({what}): leave it out") from error


def make_history(
    state: Record, identity: Record, *, folder: Path = Path(), metric: str = "reward", record: Record | None = None
) -> History:
    """The history in a trainer's state as its checkpoints hold it. `record` is the run's `credit_run.json`.

    Raises like [`read_history`].
    """
    rows = [row for row in state["log_history"] if "step_time" in row]  # rows of training, not of evaluations
    ends = [0.0, *(float(row["step"]) for row in rows)]
    amounts = [_amounts(row, before=before, identity=identity) for row, before in zip(rows, ends, strict=False)]
    counts = {name: np.cumsum([0.0, *(amount[name] for amount in amounts)]).tolist() for name in AXES}
    counts = {name: count for name, count in counts.items() if not math.isnan(count[-1])}
    points = [(row["step"], row[metric]) for row in state["log_history"] if _is_number(row.get(metric))]
    if not state["log_history"]:
        few = f"{state['max_steps']} steps with logging_steps={state.get('logging_steps')}"
        raise ValueError(f"{str(folder)!r} logged nothing in {few}: train with --logging_steps 1, or leave it out")
    if not points:
        numbers = {name for row in state["log_history"] for name, value in row.items() if _is_number(value)}
        raise ValueError(f"{str(folder)!r} logged no {metric!r}{choose(metric, sorted(numbers))}")
    steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    axes = {name: np.interp(steps, ends, count) for name, count in counts.items()}
    totals = {name: count[-1] for name, count in counts.items()}
    norms = tuple(row["grad_norm"] for row in rows if _is_number(row.get("grad_norm")))
    return History(folder, identity, values, axes, totals, int(state["max_steps"]), record or {}, norms=norms)


def _amounts(row: Record, *, before: float, identity: Record) -> dict[str, float]:
    """What the optimizer steps of a log row after step `before` add to each of `AXES`; NaN if the row lacks the number.

    A logged value is the mean over the steps, or the generation batches, since the previous row.
    """
    steps, rows, batch_rows = row["step"] - before, identity["batch_size"], identity["generation_batch_size"]
    share = rows / (batch_rows * identity["num_iterations"])  # generation batches per optimizer step
    batches = math.ceil(row["step"] * share - 1e-9) - math.ceil(before * share - 1e-9)
    prompts = batch_rows / identity["num_generations"]
    if "credit/groups/sampled" in row:  # refills sample more than the batch has
        prompts = _number(row, "credit/groups/sampled")
    response_tokens = _number(row, "completions/mean_length") * prompts * identity["num_generations"]
    rollout_tokens = _number(row, "credit/rollout_tokens")
    of_batch = {"none": response_tokens, "tree": rollout_tokens}
    generated = of_batch.get(identity["rollouts"], response_tokens + rollout_tokens)
    trained = _number(row, "credit/trained_tokens_per_row") * rows * steps
    counts = {"steps": steps, "prompts": batches * prompts, "generated": batches * generated if batches else 0.0}
    return counts | {"trained": trained, "seconds": _number(row, "step_time") * steps}


def _number(row: Record, name: str) -> float:
    return float(row[name]) if _is_number(row.get(name)) else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
