"""The progress of a grid: a live table in a terminal, else a line when a run starts and when it ends."""

import sys
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .grid import Grid, Run
from .processes import Progress


class ProgressTable:
    """Shows the progress of a grid's runs, as `train_all` reports it, within its context manager `live`."""

    def __init__(self, grid: Grid, *, console: Console | None = None) -> None:
        self.grid = grid
        console = console or Console(file=sys.stdout, highlight=False)
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()
        self._shown: dict[str, str] = {}

    def show(self, progress: dict[str, Progress]) -> None:
        """Updates the table, or prints the runs whose state has changed."""
        if isinstance(self.live, Live):
            self.live.update(self.table(progress), refresh=True)
            return
        for run in self.grid.runs:
            now = progress[run.name]
            before, self._shown[run.name] = self._shown.get(run.name, "waiting"), now.state
            if now.state != before:
                print(self.line(run, now), flush=True)

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

    def table(self, progress: dict[str, Progress]) -> Table:
        """A row for each algorithm, a column for each seed."""
        by_entry: dict[str, list[Run]] = {}
        for run in self.grid.runs:
            by_entry.setdefault(run.entry.label, []).append(run)
        done = sum(now.state == "finished" for now in progress.values())
        table = Table(title=f"{done} of {len(progress)} runs are finished", title_justify="left")
        table.add_column("algorithm")
        for seed in dict.fromkeys(run.seed for run in self.grid.runs):
            table.add_column(f"seed {seed}", justify="right")
        for label, runs in by_entry.items():
            table.add_row(Text(label), *(self._cell(run, progress[run.name]) for run in runs))
        return table

    def _cell(self, run: Run, now: Progress) -> Text:
        reward = "" if now.reward is None else f" {now.reward:.2f}"
        planned = self.grid.steps[run.entry.name]
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
        failed = [(run, progress[run.name]) for run in self.grid.runs if progress[run.name].state == "failed"]
        return [f"{run.name} failed at step {now.step}: {now.error} ({run.log})" for run, now in failed]
