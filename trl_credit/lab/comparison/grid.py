"""A grid of runs, algorithms × seeds: their settings, their commands, how far they are, and `grid.json`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...runs.checkpoints import checkpoint_step, checkpoints_of, last_checkpoint, planned_steps
from ...support.errors import one_line
from ...support.files import read_json, write_atomically
from .entries import Entry, Sweep, number


TUNING, VERDICT = "tuning", "verdict"  # the phases of a run
_VERSION = 2  # of grid.json


@dataclass(frozen=True)
class Run:
    """A cell of the grid.

    Attributes:
        entry: The algorithm.
        seed: The seed.
        name: Name of the run, "grpo/seed-0".
        words: Arguments of `trl-credit train`.
        output_dir: The folder of the run.
        log: The file with the output of its processes.
        phase: "tuning" or "verdict".
        value: Value of the setting that is swept, `None` without a sweep.
    """

    entry: Entry
    seed: int
    name: str
    words: tuple[str, ...]
    output_dir: Path
    log: Path
    phase: str = VERDICT
    value: float | str | None = None

    @property
    def checkpoint(self) -> Path | None:
        """Its last complete checkpoint."""
        return last_checkpoint(self.output_dir) if self.output_dir.is_dir() else None

    @property
    def is_finished(self) -> bool:
        """Whether its last checkpoint is that of its last step."""
        last = self.checkpoint
        return last is not None and checkpoint_step(last) >= planned_steps(last)

    def command(self) -> list[str]:
        """The arguments of `trl-credit` that start or resume it."""
        resume = ["--resume_from_checkpoint", "true"] if checkpoint_step(self.checkpoint) else []
        return ["train", *self.words, *resume]


@dataclass(frozen=True)
class Grid:
    """The settings of each algorithm, and the runs made of them.

    Attributes:
        folder: Folder of the comparison.
        entries: The algorithms with the settings of their runs.
        seeds: Seeds of the verdict.
        sweep: The setting that is tuned.
    """

    folder: Path
    entries: list[Entry]
    seeds: list[int]
    sweep: Sweep | None = None

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Shared settings that an algorithm does not have, by its label."""
        return {entry.label: list(entry.left_out) for entry in self.entries if entry.left_out}

    @property
    def swept(self) -> list[Entry]:
        """The algorithms that have the setting that is swept."""
        return [entry for entry in self.entries if self.sweep and self.sweep.name not in entry.left_out]

    def tuning_runs(self) -> list[Run]:
        """A run of each entry that has the swept setting, with each of its values and tuning seeds."""
        cells = [(e, value, seed) for e in self.swept for value in self.sweep.values for seed in self.sweep.seeds]
        return [self._run(entry, seed, value, TUNING) for entry, value, seed in cells]

    def verdict_runs(self, best: dict[str, str] | None = None) -> list[Run]:
        """A run of each entry and seed. `best` is the value of the swept setting by label."""
        cells = [(entry, seed) for entry in self.entries for seed in self.seeds]
        return [self._run(entry, seed, (best or {}).get(entry.label), VERDICT) for entry, seed in cells]

    def write(self, runs: Sequence[Run], *, primary: str) -> str:
        """Adds runs to `grid.json`, and writes the settings of each algorithm if files of settings are given.

        Runs of earlier grids stay; a run that is in both must be the same.

        Returns:
            `str`: the primary metric that was declared when the file was first written.

        Raises:
            ValueError: a run was made with other settings, or not by a grid; a seed is used for tuning and for the
                verdict, now or in an earlier grid.
        """
        path = self.folder / "grid.json"
        declared, known = _read(path, primary)
        content = {run.name: _record(run) for run in runs}
        planned = {run.name: _record(run) for run in self.verdict_runs()}
        _check_phases([*known.items(), *content.items(), *planned.items()])
        for run in runs:
            before, now = known.get(run.name), content[run.name]
            if before is None and checkpoints_of(run.output_dir):
                raise ValueError(f"{run.output_dir} holds a run that this comparison did not make: name another folder")
            if before not in (None, now):
                was = f"{' '.join(before['words'])} {before['settings'] or ''}".strip()
                fix = "use them again, or choose another --output_dir"
                raise ValueError(f"{run.output_dir} was made with other settings ({was}): {fix}")
        for entry in self.entries:
            if entry.settings:
                text = yaml.safe_dump(entry.settings, sort_keys=False, allow_unicode=True, width=100)
                write_atomically(settings_file(self.folder, entry), text)
        record = {"version": _VERSION, "primary": declared, "runs": known | content}
        write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False))
        return declared

    def _run(self, entry: Entry, seed: int, value: str | None, phase: str) -> Run:
        parts, swept = [entry.name, f"seed-{seed}"], []
        if value is not None:
            parts.insert(1, f"{self.sweep.name}-{value}".replace("/", "_"))
            swept = [f"--{self.sweep.name}", value]
        name = "/".join(parts)
        folder = self.folder / "runs" / name
        words = (*entry.words, *swept, "--seed", str(seed), "--output_dir", str(folder))
        log = self.folder / "logs" / f"{name}.txt"
        return Run(entry, seed, name, words, folder, log, phase, None if value is None else number(value))


def settings_file(folder: Path, entry: Entry) -> Path:
    """The file with the settings of an entry."""
    return folder / "settings" / f"{entry.name}.yaml"


def _record(run: Run) -> dict[str, Any]:
    return {"words": list(run.words), "settings": json.loads(json.dumps(run.entry.settings)), "phase": run.phase}


def _read(path: Path, primary: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The declared primary metric, this one if there is no file yet, and the runs by name."""
    if not path.is_file():
        return primary, {}
    try:
        record = read_json(path)
        if record["version"] != _VERSION:
            raise ValueError(f"version {record['version']}")
        return record["primary"], record["runs"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"{path} is damaged, or of another release ({one_line(error)})"
        raise ValueError(f"{what}: choose another folder") from error


def _check_phases(runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Raises `ValueError` if an algorithm was tuned, now or in an earlier grid, on a seed of its verdict."""
    cells = {(run["phase"], name.split("/")[0], name.split("/")[-1]) for name, run in runs}
    for phase, name, seed in sorted(cells):
        if phase == TUNING and (VERDICT, name, seed) in cells:
            what = f"{name} has {seed} both for tuning and for the verdict, which is then biased"
            raise ValueError(f"{what}: choose other --seeds or --tuning_seeds, or another folder")
