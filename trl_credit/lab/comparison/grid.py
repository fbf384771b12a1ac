"""A grid of runs, algorithms × seeds: their settings, their commands and how far they are."""

import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ...config import CreditConfig
from ...presets import PRESETS
from ...runs.checkpoints import checkpoint_step, checkpoints_of, last_checkpoint
from ...runs.identity import differences, in_words
from ...settings.arguments import inactive_settings, parse_arguments
from ...settings.files import read_settings
from ...support.errors import choose, one_line
from ...support.files import write_atomically
from ...support.signals import without_flag
from ..evaluation.protocols import PROTOCOLS


GRID_FILE = "grid.json"
_VERSION = 1
# settings that the grid sets for each run
_SET_BY_GRID = ("algo", "seed", "output_dir", "resume_from_checkpoint", "overwrite_output_dir", "run_name")
_REFUSED = {
    "push_to_hub": "a comparison pushes nothing",
    "accelerate_config": "each run is one process",
    "data_seed": "--seeds has a seed for each run",
}
_DEFAULTS = {"logging_steps": "1", "save_total_limit": "1", "disable_tqdm": "true"}


@dataclass(frozen=True)
class Entry:
    """An algorithm of the grid: its name, its label in the report, and its flags of `trl-credit train`."""

    name: str
    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One cell of the grid: an algorithm with a seed, its arguments of `trl-credit train`, its folder and its log."""

    entry: Entry
    seed: int
    words: tuple[str, ...]
    folder: Path
    log: Path

    @property
    def name(self) -> str:
        """ "s_trace/seed-0"."""
        return f"{self.entry.name}/seed-{self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether its last checkpoint is that of its last step."""
        checkpoint = self._last_checkpoint
        if checkpoint is None:
            return False
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
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


@dataclass(frozen=True)
class Grid:
    """All runs, by algorithm and then by seed.

    Attributes:
        runs: The runs of each entry together.
        settings: Settings from files by the name of an entry, without those that it does not have.
        left_out: Shared settings that an entry does not have, by its label.
        steps: Optimizer steps of a run by the name of its entry, −1 if epochs set them.
    """

    runs: tuple[Run, ...]
    settings: dict[str, dict[str, Any]]
    left_out: dict[str, list[str]]
    steps: dict[str, int]


def read_entries(algorithms: Sequence[str], credit: Sequence[str]) -> list[Entry]:
    """The algorithms that `--algo` and `--credit` name.

    Args:
        algorithms (`list[str]`):
            Names of algorithms, or `NAME=ALGO --flag value …`, an algorithm with its own flags.
        credit (`list[str]`):
            Custom functions, `file.py:function` or `NAME=file.py:function`, with the settings of GRPO.

    Raises:
        ValueError: an unknown algorithm, a name that cannot be a folder, or a name that is given twice.
    """
    entries = []
    for text in algorithms:
        name, _, rest = text.partition("=") if re.match(r"[^\s-][^\s=]*=", text) else ("", "", text)
        words = shlex.split(rest)
        algo = words[0] if words else ""
        if algo not in PRESETS:
            raise ValueError(f"--algo {text!r}: {algo!r} is no algorithm{choose(algo, PRESETS)}")
        if not name and len(words) > 1:
            raise ValueError(f"--algo {text!r}: give it a name, NAME={text}")
        entries.append(Entry(name or algo, name or PRESETS[algo].name, ("--algo", algo, *words[1:])))
    for text in credit:
        name, _, function = text.rpartition("=")
        name = name or re.split(r"[:.]", function)[-1]
        entries.append(Entry(name, name, ("--algo", "grpo", "--credit", function)))
    seen: set[str] = set()
    for entry in entries:
        if not re.fullmatch(r"[\w+-][\w.+-]*", entry.name):
            raise ValueError(f"the name {entry.name!r} also names a folder: use letters, digits, '_', '.' and '-'")
        if entry.name.lower() in seen:
            raise ValueError(f"{entry.name!r} is given twice: rename one of them, NAME={entry.name} …")
        seen.add(entry.name.lower())
    return entries


def make_grid(
    entries: Sequence[Entry], seeds: Sequence[int], *, config: Sequence[str], flags: Sequence[str], folder: Path
) -> Grid:
    """The runs, each with the settings that its algorithm has. Nothing is written.

    Args:
        entries (list of [`Entry`]):
            See [`read_entries`].
        seeds (`list[int]`):
            Seeds of each entry.
        config (`list[str]`):
            Files of settings or recipes, for all runs.
        flags (`list[str]`):
            Flags of `trl-credit train`, for all runs.
        folder (`Path`):
            Folder of the comparison.

    Raises:
        ValueError: a setting that one of the runs refuses; the message names the run.
    """
    settings, files = read_settings(config)
    _refuse(flags, settings, files)
    if len(set(seeds)) < len(seeds):
        raise ValueError("--seeds names a seed twice: leave out one")
    shared = {name: value for name, value in settings.items() if name not in _SET_BY_GRID}
    config_flags = ["--config", *config] if config else []
    grid = Grid((), {}, {}, {})
    runs = []
    dead = set(_flag_names(flags))  # by every run
    for entry in entries:
        algo, own_flags = entry.words[:2], entry.words[2:]
        try:
            # the flags of an entry itself are never left out
            inactive = inactive_settings([*algo, *config_flags, *flags, *own_flags])
            left_out = [name for name in inactive if name not in _flag_names(own_flags)]
            own = {name: value for name, value in shared.items() if name not in left_out}
            kept = flags
            for name in left_out:
                kept = without_flag(without_flag(kept, name), f"no_{name}")
            words = [*kept, *own_flags]
            given = {*_flag_names(words), *own}
            words += [word for n, value in _DEFAULTS.items() if n not in given for word in (f"--{n}", value)]
            args = _checked([*algo, *words], config_flags, own if own != shared else None)
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"{entry.name}: {one_line(error)}") from error
        grid.settings[entry.name], grid.steps[entry.name] = own, args.max_steps
        dead = dead.intersection(left_out)
        if left_out:
            grid.left_out[entry.label] = left_out
        file = ["--config", str(folder / "settings" / f"{entry.name}.yaml")] if config else []
        for seed in seeds:
            output = folder / "runs" / entry.name / f"seed-{seed}"
            all_words = (*algo, *file, *words, "--seed", str(seed), "--output_dir", str(output))
            runs.append(Run(entry, seed, all_words, output, folder / "logs" / entry.name / f"seed-{seed}.txt"))
    if dead:
        raise ValueError(f"--{min(dead)} does nothing for any of these algorithms: leave it out, or set what it needs")
    return replace(grid, runs=tuple(runs))


def _checked(argv: list[str], config_flags: list[str], changed: dict[str, Any] | None) -> CreditConfig:
    """The configuration of a run. `changed` replaces the settings of the files if some were left out."""
    if changed is None:
        args = parse_arguments([*argv, *config_flags], protocols=PROTOCOLS).args
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "settings.yaml"
            path.write_text(_yaml(changed), encoding="utf-8")
            try:
                args = parse_arguments([*argv, "--config", str(path)], protocols=PROTOCOLS).args
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), " ".join(config_flags[1:]))) from error
    if args.save_strategy == "no":
        raise ValueError("save_strategy='no' leaves no checkpoint to read the log from: leave it out")
    return args


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100)


def _refuse(flags: Sequence[str], settings: dict[str, Any], files: dict[str, str]) -> None:
    given = _flag_names(flags)
    for name in given:
        if name in _SET_BY_GRID:
            raise ValueError(f"--{name} is set by the comparison for each run: leave it out")
    for name, why in _REFUSED.items():
        if name in given or settings.get(name):
            where = f"--{name}" if name in given else f"{name} in {files[name]}"
            raise ValueError(f"{where}: {why}, leave it out")


def _flag_names(words: Iterable[str]) -> list[str]:
    return [w[2:].partition("=")[0].replace("-", "_") for w in words if w.startswith("--")]


def write_grid(grid: Grid, folder: Path) -> None:
    """Writes `grid.json` with the runs of a folder, and the settings of each algorithm if files of settings are given.

    Runs of earlier grids stay; a run that is in both must be the same.

    Raises:
        ValueError: a run was made with other settings, or not by a grid.
    """
    known = _read_grid(folder)
    content = {
        run.name: {"words": list(run.words), "settings": json.loads(json.dumps(grid.settings[run.entry.name]))}
        for run in grid.runs
    }
    for run in grid.runs:
        before, now = known.get(run.name), content[run.name]
        if before is None and checkpoints_of(run.folder):
            raise ValueError(f"{run.folder} holds a run that this comparison did not make: choose another folder")
        if before is not None and before != now:
            changed = differences(_all_settings(before), _all_settings(now), defaults={})
            other = f"other settings ({in_words(changed) or 'their order'})"
            raise ValueError(f"{run.folder} was made with {other}: use these, or choose another --output_dir")
    for run in grid.runs:
        if "--config" in run.words:
            write_atomically(run.words[run.words.index("--config") + 1], _yaml(grid.settings[run.entry.name]))
    record = {"version": _VERSION, "runs": known | content}
    write_atomically(folder / GRID_FILE, json.dumps(record, indent=1, ensure_ascii=False))


def _read_grid(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / GRID_FILE
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version, runs = record["version"], record["runs"]
        if version != _VERSION or not all(isinstance(run["words"], list) for run in runs.values()):
            raise ValueError(f"version {version}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or of another release ({one_line(error)}): choose another folder"
        ) from error
    return runs


def _all_settings(run: dict[str, Any]) -> dict[str, Any]:
    """The settings from files and the flags of a run, by name."""
    values: dict[str, list[str]] = {}
    flag = ""
    for word in run["words"]:
        if word.startswith("--"):
            flag = word
            values[flag] = []
        else:
            values[flag].append(word)
    return {**run["settings"], **{flag: " ".join(words) for flag, words in values.items()}}
