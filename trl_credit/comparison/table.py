"""The table of a grid while it runs: live in a terminal, else a line when a run begins and when it ends."""

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .grid import Grid, Run
from .running import Progress


class Board:
    """Shows the progress of a grid's runs, as `train_all` gives it."""

    def __init__(self, grid: Grid, *, console: Console | None = None) -> None:
        self.grid = grid
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._said: dict[str, str] = {}

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)

    def show(self, progress: dict[str, Progress]) -> None:
        """Brings the table up to date, or prints what is new."""
        if self._live is not None:
            self._live.update(self.table(progress), refresh=True)
            return
        for run in self.grid.runs:
            now = progress[run.name]
            before, self._said[run.name] = self._said.get(run.name, "waiting"), now.state
            if now.state != before:
                print(self.line(run, now), flush=True)

    def line(self, run: Run, now: Progress) -> str:
        """What is to say of a run that has begun, ended, or was finished before."""
        end = "" if now.reward is None else f" at step {now.step}, reward {now.reward:.3f}"
        text = f"{run.name}: {now.state}"
        if now.state == "running":
            return f"{text}{f' from step {run.resumes_from}' if run.resumes_from else ''}"
        if now.state == "failed":
            return f"{text}{end}: {now.error} ({run.log})"
        return f"{text}{end}{f', {now.seconds:.0f} s' if now.seconds else ' before'}"

    def table(self, progress: dict[str, Progress]) -> Table:
        """A row for each algorithm, a column for each seed."""
        seeds = list(dict.fromkeys(run.seed for run in self.grid.runs))
        by_entry: dict[str, list[Run]] = {}
        for run in self.grid.runs:
            by_entry.setdefault(run.entry.label, []).append(run)
        done = sum(now.state == "finished" for now in progress.values())
        table = Table(title=f"{done} of {len(progress)} runs are finished", title_justify="left")
        table.add_column("algorithm")
        for seed in seeds:
            table.add_column(f"seed {seed}", justify="right")
        for label, runs in by_entry.items():
            table.add_row(Text(label), *(self._cell(run, progress[run.name]) for run in runs))
        return table

    def _cell(self, run: Run, now: Progress) -> Text:
        reward = "" if now.reward is None else f" {now.reward:.2f}"
        if now.state == "running":
            planned = self.grid.steps[run.entry.name]
            return Text(f"{now.step}{f'/{planned}' if planned > 0 else ''}{reward}", style="bold")
        words = {"waiting": "·", "finished": f"done{reward}", "failed": "failed", "stopped": f"stopped {now.step}"}
        style = {"waiting": "dim", "finished": "green", "failed": "red", "stopped": "yellow"}[now.state]
        return Text(words[now.state], style=style)


def failures(runs: Sequence[Run], progress: dict[str, Progress]) -> list[str]:
    """A sentence for each run that failed."""
    failed = [(run, progress[run.name]) for run in runs if progress[run.name].state == "failed"]
    return [f"{run.name} failed at step {now.step}: {now.error} ({run.log})" for run, now in failed]
