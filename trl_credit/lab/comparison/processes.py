"""Trains the unfinished runs of a grid, several at a time, each in its own process that reports JSON lines."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ...runs.checkpoints import checkpoint_step
from ...support.files import refuse_link
from .grid import Run


PROGRESS = "TRL_CREDIT_PROGRESS"  # the environment variable with the file of a run's progress
_POLL = 0.2  # seconds
_PATIENCE = 60.0  # seconds that a stopped run has to write its plots
_TAIL = 20_000  # bytes at the end of a log or of a file of progress


class ProgressLines(TrainerCallback):
    """Adds a line with the step and its reward to the file that `TRL_CREDIT_PROGRESS` names, at each log of training.
    Does nothing without the variable."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        path = os.environ.get(PROGRESS)
        if path and state.is_world_process_zero and "reward" in (logs or {}):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "reward": logs["reward"]}) + "\n")


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        run: The run.
        state: "waiting", "running", "finished", "failed" or "stopped".
        step: The last step that was logged.
        reward: Reward of that step.
        error: Why it failed.
        seconds: Run time of its process.
        first_step: The step from which this process resumed.
        process: Its process, whose output is appended to the run's log.
    """

    run: Run
    state: str = "waiting"
    step: int = 0
    reward: float | None = None
    error: str = ""
    seconds: float = 0.0
    first_step: int = 0
    process: subprocess.Popen | None = None
    _begun: float = 0.0
    _log_start: int = 0

    def start(self, *, threads: int, gpu: str | None) -> None:
        """Starts or resumes the run."""
        self.state, self._begun = "running", time.monotonic()
        self.step = self.first_step = checkpoint_step(self.run.checkpoint)
        self.run.log.parent.mkdir(parents=True, exist_ok=True)
        lines = self.run.log.with_suffix(".jsonl").resolve()
        lines.unlink(missing_ok=True)
        variables = {"OMP_NUM_THREADS": str(threads), PROGRESS: str(lines)}
        variables |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        with refuse_link(self.run.log).open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", __package__.partition(".")[0], *self.run.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which stops the runs
            )

    def update(self) -> None:
        """Reads what the process has reported, and whether it has ended."""
        code = self.process.poll()
        self.seconds = time.monotonic() - self._begun
        if lines := _tail(self.run.log.with_suffix(".jsonl")).rpartition("\n")[0].splitlines():
            last = json.loads(lines[-1])
            self.step, self.reward = last["step"], last["reward"]
        if code is not None:
            self.state = "finished" if code == 0 and self.run.is_finished else "failed"
        if self.state == "failed":
            output = [line for line in _tail(self.run.log, self._log_start).splitlines() if line.strip()]
            errors = [line.removeprefix("error: ") for line in output if line.startswith("error: ")]
            self.error = (errors or output or [f"its process ended with exit code {code}"])[-1]

    def in_words(self) -> str:
        """A line for a run that has started, ended, or was finished before."""
        if self.state == "running":
            return f"{self.run.name}: running{f' from step {self.first_step}' if self.first_step else ''}"
        reward = "" if self.reward is None else f" at step {self.step}, reward {self.reward:.3f}"
        seconds = f", {self.seconds:.0f} s" if self.seconds else " before"
        return f"{self.run.name}: {self.state}{reward}{seconds}{f': {self.error}' if self.error else ''}"


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended the runs. Its argument is the signal."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(i) for i in range(count)])[:count]


def train_all(
    runs: Sequence[Run], *, jobs: int, gpus: Sequence[str], show: Callable[[list[Progress]], None]
) -> list[Progress]:
    """Trains runs in their order, `jobs` at a time, each on one GPU if there are any.

    A run that fails does not affect the others.

    Args:
        runs (list of [`Run`]):
            Finished ones are skipped.
        jobs (`int`):
            Processes at a time.
        gpus (`list[str]`):
            GPUs that the processes share evenly.
        show (`Callable`):
            Called with the progress of all runs, several times a second.

    Returns:
        `list[Progress]`: the progress of every run.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the processes have ended.
    """
    progress = [Progress(run, "finished" if run.is_finished else "waiting") for run in runs]
    waiting = [one for one in progress if one.state == "waiting"]
    slots: list[Progress | None] = [None] * min(jobs, len(waiting))
    threads = max(1, cores() // max(len(slots), 1))
    with _collected_signals() as signals:
        try:
            while waiting or any(slots):
                for place, one in enumerate(slots):
                    if one is not None:
                        one.update()
                    if one is None or one.state != "running":
                        slots[place] = one = waiting.pop(0) if waiting else None
                        if one is not None:
                            one.start(threads=threads, gpu=gpus[place % len(gpus)] if gpus else None)
                show(progress)
                if signals:
                    raise Interrupted(signal.Signals(signals[0]))
                time.sleep(_POLL)
        finally:
            _stop([one for one in slots if one is not None])
            show(progress)
    return progress


@contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Context in which Ctrl-C and SIGTERM are appended to the list that it yields."""
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(running: Sequence[Progress]) -> None:
    """Sends SIGTERM, so that processes write their plots, and kills those that take too long."""
    for one in running:
        one.process.terminate()
    deadline = time.monotonic() + _PATIENCE
    for one in running:
        try:
            one.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        one.update()
        if one.state == "failed":
            one.state, one.error = "stopped", ""


def _tail(path: Path, start: int = 0) -> str:
    """The end of a text file, from `start` on; empty without a file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - _TAIL))
        return file.read().decode("utf-8", "replace")
