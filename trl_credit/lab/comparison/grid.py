"""A grid of runs, algorithms × seeds: their settings, their commands and how far they are."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runs.checkpoints import checkpoint_step, last_checkpoint
from ...support.files import read_json
from .entries import Entry, Sweep, number


TUNING, VERDICT = "tuning", "verdict"  # the phases of a run


@dataclass(frozen=True)
class Run:
    """A cell of the grid: an algorithm with a seed, its arguments of `trl-credit train`, its folder and its log.

    `value` is the value of the setting that is swept, `None` without a sweep. `phase` is "tuning" or "verdict".
    """

    entry: Entry
    seed: int
    words: tuple[str, ...]
    folder: Path
    log: Path
    name: str
    value: float | str | None = None
    phase: str = VERDICT

    @property
    def is_finished(self) -> bool:
        """Whether its last checkpoint is that of its last step."""
        checkpoint = self._last_checkpoint
        if checkpoint is None:
            return False
        state = read_json(checkpoint / "trainer_state.json")
        return state["global_step"] >= state["max_steps"]

    @property
    def resumes_from(self) -> int:
        """The step of its last complete checkpoint, 0 without one."""
        return checkpoint_step(self._last_checkpoint)

    def command(self) -> list[str]:
        """The arguments of `trl-credit` that start or resume it."""
        resume = ["--resume_from_checkpoint", "true"] if self.resumes_from else []
        return ["train", *self.words, *resume]

    @property
    def _last_checkpoint(self) -> Path | None:
        return last_checkpoint(self.folder) if self.folder.is_dir() else None


@dataclass
class Grid:
    """The settings of each algorithm, and the runs made of them.

    Attributes:
        folder: Folder of the comparison.
        entries: The algorithms.
        seeds: Seeds of the verdict.
        sweep: The setting that is tuned.
        words: Arguments of `trl-credit train` for every run of an entry, by its name.
        settings: Settings from files by the name of an entry, without those that it does not have.
        left_out: Shared settings that an entry does not have, by its label.
        steps: Optimizer steps of a run by the name of its entry, −1 if epochs set them.
    """

    folder: Path
    entries: list[Entry]
    seeds: list[int]
    sweep: Sweep | None = None
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def tuning_runs(self) -> list[Run]:
        """A run of each entry that has the swept setting, with each of its values and tuning seeds."""
        if self.sweep is None:
            return []
        swept = [entry for entry in self.entries if self.sweeps(entry)]
        return [
            self._run(entry, seed, value, TUNING)
            for entry in swept
            for value in self.sweep.values
            for seed in self.sweep.seeds
        ]

    def verdict_runs(self, best: dict[str, str] | None = None) -> list[Run]:
        """A run of each entry and seed. `best` is the value of the swept setting by label."""
        best = best or {}
        return [self._run(e, seed, best.get(e.label), VERDICT) for e in self.entries for seed in self.seeds]

    def sweeps(self, entry: Entry) -> bool:
        """Whether an entry has the setting that is swept."""
        return self.sweep is not None and self.sweep.name not in self.left_out.get(entry.label, ())

    def _run(self, entry: Entry, seed: int, value: str | None, phase: str) -> Run:
        swept = () if value is None else (f"--{self.sweep.name}", value)
        at = () if value is None else (f"{self.sweep.name}-{value}".replace("/", "_"),)
        name = "/".join((entry.name, *at, f"seed-{seed}"))
        output = self.folder / "runs" / name
        words = (*self.words[entry.name], *swept, "--seed", str(seed), "--output_dir", str(output))
        log = self.folder / "logs" / f"{name}.txt"
        return Run(entry, seed, words, output, log, name, None if value is None else number(value), phase)
