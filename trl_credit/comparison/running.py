"""Trains the runs of a grid that are not finished, several at a time, each in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .grid import Run


_POLL = 0.2  # seconds
_PATIENCE = 60.0  # seconds that a run has for its plots when it is stopped
_TAIL = 20_000  # bytes of a log in which its last line is looked for
_STEP = re.compile(r"^step +(\d+)  reward (-?[\d.]+)", re.MULTILINE)


@dataclass
class Progress:
    """How a run is doing.

    Attributes:
        state: "waiting", "running", "finished", "failed" or "stopped".
        step: The last that its log has.
        reward: There.
        error: Why it failed.
        seconds: For which its process ran.
    """

    state: str = "waiting"
    step: int = 0
    reward: float | None = None
    error: str = ""
    seconds: float = 0.0


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended the runs; `number` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def cores() -> int:
    """Those that this process may use."""
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
    """Trains runs in their order, `jobs` at a time, on a GPU each where there are any. A run that fails leaves the
    others alone.

    Args:
        runs (list of [`Run`]):
            Those that are finished are passed over.
        jobs (`int`):
            Processes at a time.
        gpus (`list[str]`):
            Which the processes share, evenly.
        show (`Callable`):
            Is given the progress of all runs by name, several times a second.

    Returns:
        `dict`: the progress of every run, by its name.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the processes have ended.
    """
    found = {run.name: Progress("finished" if run.is_finished else "waiting") for run in runs}
    waiting = [run for run in runs if found[run.name].state == "waiting"]
    slots: list[_Child | None] = [None] * min(jobs, len(waiting))
    threads = max(1, cores() // max(len(slots), 1))
    with _Stop() as stop:
        try:
            while waiting or any(slots):
                for place, child in enumerate(slots):
                    if child is not None and child.has_ended(found[child.run.name]):
                        slots[place] = child = None
                    if child is None and waiting:
                        run = waiting.pop(0)
                        gpu = gpus[place % len(gpus)] if gpus else None
                        found[run.name].state = "running"
                        slots[place] = _Child(run, threads=threads, gpu=gpu)
                show(found)
                stop.check()
                time.sleep(_POLL)
        finally:
            _end([child for child in slots if child is not None], found, stop)
            show(found)
    return found


class _Child:
    """The process of a run. What it says goes to the run's log, behind what is there."""

    def __init__(self, run: Run, *, threads: int, gpu: str | None) -> None:
        self.run = run
        self.begun = time.monotonic()
        variables = {"OMP_NUM_THREADS": str(threads)} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", __package__.partition(".")[0], *run.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,  # a terminal's Ctrl-C is for us, and we pass it on once
            )

    def has_ended(self, progress: Progress) -> bool:
        """Whether it has, with what its log says written to `progress`."""
        code = self.process.poll()
        text = _tail(self.run.log, self.start)
        progress.seconds = time.monotonic() - self.begun
        if steps := _STEP.findall(text):
            progress.step, progress.reward = int(steps[-1][0]), float(steps[-1][1])
        if code is None:
            return False
        progress.state = "finished" if code == 0 and self.run.is_finished else "failed"
        if progress.state == "failed":
            lines = [line for line in text.splitlines() if line.strip()]
            said = next((line for line in reversed(lines) if line.startswith("error: ")), (lines or [""])[-1])
            progress.error = said.removeprefix("error: ") or f"its process ended with exit code {code}"
        return True


class _Stop:
    """Within it Ctrl-C and SIGTERM are counted, and said to `check`."""

    def __enter__(self) -> "_Stop":
        self.numbers: list[int] = []
        self._before = {n: signal.signal(n, self._count) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.numbers:
            raise Interrupted(self.numbers[0])

    def _count(self, number: int, frame: Any) -> None:
        self.numbers.append(number)


def _end(children: Sequence[_Child], found: dict[str, Progress], stop: _Stop) -> None:
    """Asks processes to end, which write their plots, and ends those that do not, or at a second Ctrl-C."""
    for child in children:
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    for child in children:
        while child.process.poll() is None and time.monotonic() < deadline and len(stop.numbers) < 2:
            time.sleep(_POLL / 4)
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()
        child.has_ended(progress := found[child.run.name])
        if progress.state == "failed":
            progress.state, progress.error = "stopped", ""


def _tail(path: Path, start: int) -> str:
    """The end of a log, without what earlier processes of the run wrote there."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - _TAIL))
        return log.read().decode("utf-8", "replace")
