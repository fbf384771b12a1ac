"""Trains the unfinished runs of a grid, several at a time, each in its own process that reports JSON lines."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm import tqdm
from transformers import TrainerCallback

from ...runs.checkpoints import checkpoint_step, read_run
from ...support.files import refuse_link
from .grid import Run
from .rows import Record, Rows


PROGRESS = "TRL_CREDIT_PROGRESS"  # the environment variable with the file of a run's progress
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # of Ctrl-C, and of a cluster's scheduler
_POLL = 0.2  # seconds
_PATIENCE = 60.0  # seconds that a stopped run has to write its plots


class ProgressLines(TrainerCallback):
    """Adds a line with the step and its reward to the file that `TRL_CREDIT_PROGRESS` names, at each log of training.
    Does nothing without the variable."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        path = os.environ.get(PROGRESS)
        if path and state.is_world_process_zero and "reward" in (logs or {}):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "reward": logs["reward"]}) + "\n")


class _Job:
    """A run in its process, whose output is appended to the run's log.

    Attributes:
        run: The run.
        process: Its process.
        first_step: The step from which it resumed.
        step: The last step that was logged.
        reward: Reward of that step, `None` before the first log.
        begun: When it was started.
        log_start: Where its output begins in the log.
        problem: Why it is none of its row, "" if it is one, `None` before it has written what it is.
    """

    def __init__(self, run: Run, *, threads: int, gpu: str | None) -> None:
        self.run, self.reward, self.begun, self.problem = run, None, time.monotonic(), None
        self._before = _last_start(run)
        self.first_step = self.step = checkpoint_step(run.checkpoint)
        run.log.parent.mkdir(parents=True, exist_ok=True)
        progress = run.log.with_suffix(".jsonl").resolve()
        progress.unlink(missing_ok=True)
        variables = {"OMP_NUM_THREADS": str(threads), PROGRESS: str(progress)}
        variables |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        command = [sys.executable, "-m", __package__.partition(".")[0], *run.command()]
        with refuse_link(run.log).open("ab") as log:
            self.log_start = log.tell()
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            # with a session of its own, as a terminal's Ctrl-C is to reach only this process, which stops the runs
            self.process = subprocess.Popen(command, env=os.environ | variables, start_new_session=True, **streams)

    def update(self, rows: Rows) -> None:
        """Reads the step and the reward that the process logged last, and ends a run that is none of its row."""
        if self.problem is None and (start := _last_start(self.run)) != self._before:
            self.problem = rows.problem(self.run, start[1])
            if self.problem:  # at once, so that it leaves nothing but its record
                os.killpg(self.process.pid, signal.SIGKILL)
        if lines := _lines(self.run.log.with_suffix(".jsonl")):
            last = json.loads(lines[-1])
            self.step, self.reward = last["step"], last["reward"]

    def error(self) -> str:
        """Why the process failed, "" if the run is finished."""
        if self.problem or (self.process.returncode == 0 and self.run.is_finished):
            return self.problem or ""
        output = [line for line in _lines(self.run.log, self.log_start) if line.strip()]
        errors = [line for line in output if line.startswith("error: ")]
        return (errors or output or [f"exit code {self.process.returncode}"])[-1].removeprefix("error: ")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended the runs. Its argument is the signal."""


def train_all(runs: Sequence[Run], *, rows: Rows, jobs: int | None) -> list[str]:
    """Trains runs in their order, each on one GPU if there are any. A run that fails does not affect the others.

    Prints a line when a run starts and when it ends, in a terminal below a bar with the time left.

    Args:
        runs (list of [`Run`]):
            Finished ones are skipped.
        rows ([`Rows`]):
            With these and the runs that are trained, one that would not belong to its row fails.
        jobs (`int` or `None`):
            Runs at a time; by default one for each GPU, else for each core.

    Returns:
        `list[str]`: a sentence for each run that failed.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the processes have ended.
    """
    gpus, cores = _devices(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    waiting = [run for run in runs if not run.is_finished]
    for run in runs:
        if run not in waiting:
            print(f"{run.name}: finished before", flush=True)
    slots: list[_Job | None] = [None] * min(jobs or len(gpus) or cores, len(waiting))
    threads = max(1, cores // max(len(slots), 1))
    total = sum(run.entry.steps for run in waiting) if all(run.entry.steps > 0 for run in waiting) else None
    started: list[_Job] = []
    failed: list[str] = []
    signals: list[int] = []
    handlers = {n: signal.signal(n, lambda number, frame: signals.append(number)) for n in _SIGNALS}
    with tqdm(total=total, unit="step", disable=None) as bar:
        try:
            while waiting or any(slots):
                for place, job in enumerate(slots):
                    if job is not None and job.process.poll() is not None:
                        job.update(rows)
                        bar.write(_outcome(job, failed))
                        slots[place] = job = None
                    if job is None and waiting:
                        gpu = gpus[place % len(gpus)] if gpus else None
                        slots[place] = job = _Job(waiting.pop(0), threads=threads, gpu=gpu)
                        started.append(job)
                        bar.write(f"{job.run.name}: running{f' from step {job.step}' if job.step else ''}")
                    if job is not None:
                        job.update(rows)
                sys.stdout.flush()
                bar.n = sum(job.step - job.first_step for job in started)
                bar.refresh()
                if signals:
                    raise Interrupted(signal.Signals(signals[0]))
                time.sleep(_POLL)
        finally:
            _stop([job.process for job in slots if job is not None])
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return failed


def _outcome(job: _Job, failed: list[str]) -> str:
    """A line for a run whose process has ended. An error is added to `failed`, and printed there."""
    name, error = job.run.name, job.error()
    if error:
        failed.append(f"{name} failed at step {job.step}: {error} ({job.run.log})")
        print(f"error: {failed[-1]}", file=sys.stderr)
    reward = "" if job.reward is None else f" at step {job.step}, reward {job.reward:.3f}"
    return f"{name}: {'failed' if error else 'finished'}{reward}, {time.monotonic() - job.begun:.0f} s"


def _last_start(run: Run) -> tuple[str, Record] | None:
    """The id of the last start in a run's folder, and its record there; `None` before the first."""
    record = read_run(run.output_dir)
    return None if record is None else (record["lives"][-1]["id"], record)


def _devices() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(i) for i in range(count)])[:count]


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """Sends SIGTERM, so that processes write their plots, and kills those that take too long."""
    for process in processes:
        process.terminate()
    for process in psutil.wait_procs(processes, timeout=_PATIENCE)[1]:
        process.kill()
        process.wait()


def _lines(path: Path, start: int = 0) -> list[str]:
    """The lines of a text file, from byte `start` on; none without a file."""
    return path.read_bytes()[start:].decode("utf-8", "replace").splitlines() if path.is_file() else []
