"""The progress of runs: a live table in a terminal, else a line when a run starts and when it ends."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .grid import VERDICT, Run
from .processes import Progress
from .tuning import in_short


class ProgressTable:
    """Shows the progress of runs, as `train_all` reports it, within its context manager `live`.

    Args:
        runs (list of `Run`):
            The runs, of one phase.
        steps (`dict`):
            Optimizer steps of a run by the name of its entry, −1 if epochs set them.
        jobs (`int`, *optional*, defaults to `1`):
            Runs at a time.
        console (`Console`, *optional*):
            Defaults to the standard output.
    """

    def __init__(
        self, runs: Sequence[Run], steps: dict[str, int], *, jobs: int = 1, console: Console | None = None
    ) -> None:
        self.runs, self.steps, self.jobs = runs, steps, jobs
        self.phase = next((f"{run.phase} " for run in runs if run.value is not None and run.phase != VERDICT), "")
        console = console or Console(file=sys.stdout, highlight=False)
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()
        self._shown: dict[str, str] = {}

    def show(self, progress: dict[str, Progress]) -> None:
        """Updates the table, or prints the runs whose state has changed."""
        if isinstance(self.live, Live):
            self.live.update(self.table(progress), refresh=True)
            return
        for run in self.runs:
            now = progress[run.name]
            before, self._shown[run.name] = self._shown.get(run.name, "waiting"), now.state
            if now.state != before:
                print(self.line(run, now) + (self.time_left(progress) if now.seconds else ""), flush=True)

    def line(self, run: Run, now: Progress) -> str:
        """The line of a run that has started, ended, or was finished before."""
        text = f"{run.name}: {now.state}"
        if now.state == "running":
            return f"{text}{f' from step {run.resumes_from}' if run.resumes_from else ''}"
        if now.reward is not None:
            text += f" at step {now.step}, reward {now.reward:.3f}"
        if now.state == "failed":
            return f"{text}: {now.error} ({run.log})"
        return f"{text}, {now.seconds:.0f} s" if now.seconds else f"{text} before"

    def time_left(self, progress: dict[str, Progress]) -> str:
        """ "; about 12 min left" by the seconds per step so far, or "" where that is not known.

        An algorithm without a step so far is taken to be as fast as the mean of the others.
        """
        speeds: dict[str, list[float]] = {}
        for run in self.runs:
            now = progress[run.name]
            if now.step > now.first_step and now.seconds:
                speeds.setdefault(run.entry.name, []).append(now.seconds / (now.step - now.first_step))
        of_entry = {name: sum(found) / len(found) for name, found in speeds.items()}
        waiting = [run for run in self.runs if progress[run.name].state in ("waiting", "running")]
        if not of_entry or not waiting or any(self.steps[run.entry.name] <= 0 for run in waiting):
            return ""
        usual = sum(of_entry.values()) / len(of_entry)
        left = [
            (self.steps[run.entry.name] - progress[run.name].step) * of_entry.get(run.entry.name, usual)
            for run in waiting
        ]
        # the longest run cannot be split
        return f"; about {_duration(max(sum(left) / self.jobs, max(left)))} left"

    def table(self, progress: dict[str, Progress]) -> Table:
        """A row for each algorithm and swept value, a column for each seed."""
        by_row: dict[str, list[Run]] = {}
        for run in self.runs:
            label = run.entry.label + ("" if run.value is None else f" {in_short(run.value)}")
            by_row.setdefault(label, []).append(run)
        done = sum(now.state == "finished" for now in progress.values())
        title = f"{done} of {len(progress)} {self.phase}runs are finished{self.time_left(progress)}"
        table = Table(title=title, title_justify="left")
        table.add_column("algorithm")
        for seed in dict.fromkeys(run.seed for run in self.runs):
            table.add_column(f"seed {seed}", justify="right")
        for label, runs in by_row.items():
            table.add_row(Text(label), *(self._cell(run, progress[run.name]) for run in runs))
        return table

    def _cell(self, run: Run, now: Progress) -> Text:
        reward = "" if now.reward is None else f" {now.reward:.2f}"
        planned = self.steps[run.entry.name]
        of_planned = f"/{planned}" if planned > 0 else ""
        text, style = {
            "waiting": ("·", "dim"),
            "running": (f"{now.step}{of_planned}{reward}", "bold"),
            "finished": (f"done{reward}", "green"),
            "failed": ("failed", "red"),
            "stopped": (f"stopped {now.step}", "yellow"),
        }[now.state]
        return Text(text, style=style)

    def failures(self, progress: dict[str, Progress]) -> list[str]:
        """A sentence for each run that failed."""
        failed = [(run, progress[run.name]) for run in self.runs if progress[run.name].state == "failed"]
        return [f"{run.name} failed at step {now.step}: {now.error} ({run.log})" for run, now in failed]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
