"""What a run measures: sums over processes, logged once per optimizer step, and the seconds of its phases."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import TrainerState, TrainingArguments

from ..support.processes import Processes


Metrics = Mapping[str, Mapping[str, list[float]]]  # TRL's, by mode ("train", "eval") and name


class Meter:
    """Logs metrics under `credit/`.

    In a training step, numerators, denominators and a flag stay on the device; one collective call at the end of the
    optimizer step adds them over processes. Outside of a step they are added at once.

    Args:
        metrics (`Mapping`):
            TRL's metrics, by mode and name. Missing names must start as an empty list.
        processes ([`~trl_credit.support.processes.Processes`]):
            Processes of the run.
        is_training (`Callable`):
            Whether the model trains now.
    """

    def __init__(self, metrics: Metrics, processes: Processes, is_training: Callable[[], bool]) -> None:
        self._metrics, self._processes, self._is_training = metrics, processes, is_training
        self.in_step = False
        self._seconds: dict[str, float] = defaultdict(float)  # by phase
        self.clear()

    def clear(self) -> None:
        """Forgets the sums of a step that was not finished."""
        self._names: list[str] = []
        self._sums: list[torch.Tensor] = []
        self._flag: torch.Tensor | None = None  # whether any micro-batch is bad

    @property
    def metrics(self) -> Mapping[str, list[float]]:
        """TRL's metrics of the current mode."""
        return self._metrics["train" if self._is_training() else "eval"]

    def record(self, stats: Mapping[str, tuple[Any, Any]]) -> None:
        """Logs `credit/<name>` = Σ numerators / Σ denominators over all processes; nothing where a denominator is 0.

        All processes must give the same names in the same order. Collective outside of a training step.
        """
        sums = torch.stack([_as_float(part, self._processes.device) for pair in stats.values() for part in pair])
        if self.in_step and self._is_training():
            self._names += stats
            self._sums.append(sums)
        else:
            total = self._processes.sum(sums)
            self.append(zip(stats, (total[::2] / total[1::2]).tolist(), strict=True))

    def append(self, values: Iterable[tuple[str, float]]) -> None:
        """Logs values that are the same on all processes."""
        metrics = self.metrics
        for name, value in values:
            metrics[f"credit/{name}"].append(value)  # TRL leaves NaN (0/0) out of the mean

    def flag(self, is_bad: torch.Tensor) -> None:
        """Notes in a training step whether a micro-batch of this process is bad: a boolean without dimensions."""
        if self.in_step:
            self._flag = is_bad if self._flag is None else self._flag | is_bad

    def take_flag(self) -> bool:
        """Whether any process flagged a micro-batch of the current step, which is then forgotten. Collective."""
        flag, self._flag = self._flag, None
        return flag is not None and bool(self._processes.sum(flag.int().view(1)) > 0)

    def close_step(self, flags: Sequence[torch.Tensor]) -> tuple[bool, list[bool]]:
        """Logs the sums of an optimizer step by one collective call; makes none if there are no sums and no flags.

        Args:
            flags (sequence of `torch.Tensor`):
                Further booleans without dimensions, of the step as a whole.

        Returns:
            `tuple[bool, list[bool]]`: whether any process flagged a micro-batch, and for each of `flags` whether any
            process set it.
        """
        names, sums, flag = self._names, self._sums, self._flag
        self.clear()
        if flag is not None:
            flags = [flag, *flags]
        if not names and not flags:
            return False, []
        device, split = self._processes.device, 2 * len(names)
        sent = [*sums, *(flag.to(device, torch.float32).view(1) for flag in flags)]
        total = self._processes.sum(torch.cat(sent))
        values = torch.cat([total[:split:2] / total[1:split:2], total[split:]]).tolist()
        self.append(zip(names, values, strict=False))
        bad = [x > 0 for x in values[len(names) :]]
        return (False, bad) if flag is None else (bad[0], bad[1:])

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context of one micro-batch of training. What is recorded in it is logged by `close_step`."""
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False

    @contextlib.contextmanager
    def timed(self, phase: str, *, always: bool = False) -> Iterator[None]:
        """Adds the seconds inside to a phase, less those of phases inside it. Without `always`, evaluations
        are not timed."""
        start, before = time.perf_counter(), sum(self._seconds.values())
        is_timed = always or self._is_training()
        try:
            yield
        finally:
            if is_timed:
                self._seconds[phase] += time.perf_counter() - start - (sum(self._seconds.values()) - before)

    def log_seconds(self) -> None:
        """Logs the seconds of each phase since the last call."""
        self.append((f"seconds/{phase}", seconds) for phase, seconds in self._seconds.items())
        self._seconds.clear()


def is_logged_step(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether transformers logs after the optimizer step that is being made. With `logging_strategy="epoch"` every step
    counts, since any may be the last of an epoch."""
    step = state.global_step + 1
    is_due = args.logging_strategy == "steps" and step % state.logging_steps == 0
    is_first = args.logging_first_step and step == 1
    # at the end of a run transformers logs what is left
    return is_due or is_first or step >= state.max_steps or args.logging_strategy == "epoch"


def _as_float(part: Any, device: torch.device) -> torch.Tensor:
    """A number, or a tensor without dimensions, as float32. A number is filled in on the device without a wait."""
    if isinstance(part, torch.Tensor):
        return part.to(device).detach().float()
    return torch.full((), float(part), device=device)
