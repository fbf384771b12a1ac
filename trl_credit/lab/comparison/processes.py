"""Trains the unfinished runs of a grid, several at a time, each in its own process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...support.files import refuse_link
from .grid import Run


_POLL = 0.2  # seconds
_PATIENCE = 60.0  # seconds that a stopped run has to write its plots
_TAIL = 20_000  # bytes of a log that are searched for its last step
_STEP = re.compile(r"^step +(\d+)  reward (-?[\d.]+)", re.MULTILINE)


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        state: "waiting", "running", "finished", "failed" or "stopped".
        step: Last step in its log.
        reward: Reward of that step.
        error: Why it failed.
        seconds: Run time of its process.
        first_step: The step from which this process resumed.
    """

    state: str = "waiting"
    step: int = 0
    reward: float | None = None
    error: str = ""
    seconds: float = 0.0
    first_step: int = 0


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended the runs. `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(i) for i in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def train_all(
    runs: Sequence[Run],
    *,
    jobs: int,
    gpus: Sequence[str],
    show: Callable[[dict[str, Progress]], None],
) -> dict[str, Progress]:
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
            Called with the progress of all runs by name, several times a second.

    Returns:
        `dict`: the progress of every run, by its name.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the processes have ended.
    """
    progress = {run.name: Progress("finished" if run.is_finished else "waiting") for run in runs}
    waiting = [run for run in runs if progress[run.name].state == "waiting"]
    slots: list[_Process | None] = [None] * min(jobs, len(waiting))
    threads = max(1, cores() // max(len(slots), 1))
    with _collected_signals() as signals:
        try:
            while waiting or any(slots):
                for place, process in enumerate(slots):
                    if process is not None and process.has_ended():
                        slots[place] = process = None
                    if process is None and waiting:
                        run = waiting.pop(0)
                        gpu = gpus[place % len(gpus)] if gpus else None
                        slots[place] = _Process(run, progress[run.name], threads=threads, gpu=gpu)
                show(progress)
                if signals:
                    raise Interrupted(signals[0])
                time.sleep(_POLL)
        finally:
            _stop([process for process in slots if process is not None], signals)
            show(progress)
    return progress


class _Process:
    """The process of a run. Its output is appended to the run's log."""

    def __init__(self, run: Run, progress: Progress, *, threads: int, gpu: str | None) -> None:
        self.run, self.progress = run, progress
        self.begun = time.monotonic()
        progress.state, progress.first_step = "running", run.resumes_from
        variables = {"OMP_NUM_THREADS": str(threads)} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with refuse_link(run.log).open("ab") as log:
            self.log_start = log.tell()
            self.popen = subprocess.Popen(
                [sys.executable, "-m", __package__.partition(".")[0], *run.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which stops the runs
            )

    def has_ended(self) -> bool:
        """Updates the progress from the log; returns whether the process has ended."""
        code, text, progress = self.popen.poll(), self._log_tail(), self.progress
        progress.seconds = time.monotonic() - self.begun
        if steps := _STEP.findall(text):
            progress.step, progress.reward = int(steps[-1][0]), float(steps[-1][1])
        if code is None:
            return False
        progress.state = "finished" if code == 0 and self.run.is_finished else "failed"
        if progress.state == "failed":
            lines = [line for line in text.splitlines() if line.strip()]
            last = next((line for line in reversed(lines) if line.startswith("error: ")), (lines or [""])[-1])
            progress.error = last.removeprefix("error: ") or f"its process ended with exit code {code}"
        return True

    def _log_tail(self) -> str:
        """The end of the log, without the output of earlier processes of the run."""
        with self.run.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start, size - _TAIL))
            return log.read().decode("utf-8", "replace")


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


def _stop(processes: Sequence[_Process], signals: Sequence[int]) -> None:
    """Sends SIGTERM, so that processes write their plots. Kills those that take too long, or all at a second Ctrl-C."""
    for process in processes:
        process.popen.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        while process.popen.poll() is None and time.monotonic() < deadline and len(signals) < 2:
            time.sleep(_POLL / 4)
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()
        process.has_ended()
        if process.progress.state == "failed":
            process.progress.state, process.progress.error = "stopped", ""
