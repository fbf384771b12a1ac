"""TRL's log of a batch: its table of completions and its metrics, where a batch is not what one call of TRL sampled."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from trl import GRPOTrainer

from ..loss.batch import replace_last
from ..loss.batch_metrics import length_statistics
from ..observe.meter import Meter
from ..rollouts.policy import Plan


class TrlLog:
    """Changes what TRL has logged of the current batch.

    Args:
        trainer (`GRPOTrainer`):
            Its table of completions is changed.
        meter ([`~trl_credit.observe.meter.Meter`]):
            With TRL's metrics.
    """

    def __init__(self, trainer: GRPOTrainer, meter: Meter) -> None:
        self._trainer, self._meter = trainer, meter
        # of a pool: rows of each call, and lengths of the metrics before it; and what was recorded
        self._calls: list[tuple[int, dict[str, int]]] | None = None
        self._recorded: dict[str, tuple[Any, Any]] = {}

    def planned(self, plan: Plan) -> None:
        """Logs whole responses instead of the rows that TRL logged."""
        replace_last(self._trainer._logs["completion"], [response.text for response in plan.logged])
        self.advantages([response.advantage for response in plan.logged])
        lengths = [response.length for response in plan.logged], [response.truncated for response in plan.logged]
        for name, value in length_statistics(*lengths).items():
            self._meter.metrics[f"completions/{name}"][-1] = value

    def advantages(self, values: list[float]) -> None:
        """Logs advantages of the batch's responses instead of those that TRL logged."""
        replace_last(self._trainer._logs["advantages"], values)

    def reward_range(self, rewards: torch.Tensor) -> None:
        """Logs the smallest and the largest total reward of a generation batch, shape (N,)."""
        if known := [x for x in rewards.tolist() if not math.isnan(x)]:
            self._meter.metrics["reward_min"].append(min(known))
            self._meter.metrics["reward_max"].append(max(known))

    def entries(self, count: int) -> list[dict[str, Any]]:
        """The last entries of the table, without advantages: column → value, the same on all processes."""
        columns = self._columns()
        return [{name: log[i] for name, log in columns.items() if len(log) >= -i} for i in range(-count, 0)]

    def show(self, entries: Sequence[dict[str, Any]]) -> None:
        """Makes these [`entries`] the table."""
        for name, log in self._columns().items():
            replace_last(log, [entry.get(name) for entry in entries])

    def _columns(self) -> dict[str, Any]:
        logs = self._trainer._logs
        more = {f"{part}/{name}": log for part in ("rewards", "extra") for name, log in logs[part].items()}
        return {"prompt": logs["prompt"], "completion": logs["completion"], **more}

    # Metrics of several calls

    @property
    def is_further_call(self) -> bool:
        """Whether the batch has had a call before the current one."""
        return self._calls is not None and len(self._calls) > 1

    @contextlib.contextmanager
    def pooled(self) -> Iterator[None]:
        """A context in which all calls count as one batch: each metric gets one value, the mean over all responses
        (of a minimum or maximum: the smallest or largest)."""
        self._calls, self._recorded = [], {}
        try:
            yield
        finally:
            calls, self._calls = self._calls, None
        if self._recorded:
            self._meter.record(self._recorded)
        if len(calls) < 2:
            return
        for name, values in self._meter.metrics.items():
            starts = [before.get(name, 0) for _, before in calls]
            parts = zip(calls, starts, [*starts[1:], len(values)], strict=True)
            if len(new := [(x, rows) for (rows, _), start, end in parts for x in values[start:end]]) > 1:
                values[starts[0] :] = [_pool(name, [(x, w) for x, w in new if not math.isnan(x)])]

    def record(self, stats: Mapping[str, tuple[Any, Any]]) -> None:
        """As [`~trl_credit.observe.meter.Meter.record`]. Calls that are pooled add to the same sums."""
        if self._calls is None:
            self._meter.record(stats)
            return
        for name, (numerator, denominator) in stats.items():
            before = self._recorded.get(name, (0, 0))
            self._recorded[name] = before[0] + numerator, before[1] + denominator

    def begin_call(self, rows: int) -> None:
        """Notes that TRL begins to sample and log `rows` rows."""
        if self._calls is not None:
            self._calls.append((rows, {name: len(values) for name, values in self._meter.metrics.items()}))


# where several calls have the smallest or the largest value; a reward function may have any name
_EXTREMES = re.compile(r"completions/(min|max)_\w+|sampling/.*/(min|max)|reward_(min|max)")


def _pool(name: str, known: list[tuple[float, int]]) -> float:
    """The value of a metric over several calls, from its values and their numbers of rows."""
    if not known:
        return math.nan
    if extreme := _EXTREMES.fullmatch(name):
        return (min if "min" in extreme.groups() else max)(x for x, _ in known)
    return sum(x * w for x, w in known) / sum(w for _, w in known)
