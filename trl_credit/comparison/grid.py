"""A grid of runs, algorithms × seeds: what each is, with which settings, and how far it has come."""

import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..algorithms import ALGORITHMS
from ..cli import dead_settings, parse_arguments
from ..config import CreditConfig
from ..files import write_whole
from ..mistakes import choose, one_line
from ..settings_files import read_settings
from ..trainer.checkpoints import checkpoint_step, checkpoints_of, last_checkpoint


GRID_FILE = "grid.json"
_VERSION = 1
# what the grid sets itself, or must be as it has it
_OWN = ("algo", "seed", "output_dir", "resume_from_checkpoint", "overwrite_output_dir", "run_name")
_REFUSED = {
    "push_to_hub": "a comparison pushes nothing",
    "accelerate_config": "each run is one process",
    "data_seed": "--seeds has a seed for each run",
}
_DEFAULTS = {"logging_steps": "1", "save_total_limit": "1", "disable_tqdm": "true"}  # unless they are set


@dataclass(frozen=True)
class Entry:
    """An algorithm of the grid: its name, how people write it, and the words for `trl-credit train` that make it."""

    name: str
    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One cell of the grid: an algorithm with a seed, the words behind `trl-credit train`, and its folder."""

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
        state = self._state()
        return state is not None and state["global_step"] >= state["max_steps"]

    @property
    def resumes_from(self) -> int:
        """The step of its last whole checkpoint, 0 where there is none."""
        return checkpoint_step(last_checkpoint(self.folder)) if self.folder.is_dir() else 0

    def command(self) -> list[str]:
        """The words behind `trl-credit`, by which it begins, or goes on."""
        goes_on = ["--resume_from_checkpoint", "true"] if self.resumes_from else []
        return ["train", *self.words, *goes_on]

    def _state(self) -> dict[str, Any] | None:
        checkpoint = last_checkpoint(self.folder) if self.folder.is_dir() else None
        if checkpoint is None:
            return None
        return json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Grid:
    """All runs, by algorithm and then by seed.

    Attributes:
        runs: Those of each entry together.
        settings: What the files of settings say, by the name of an entry, without what it does not have.
        left_out: Settings for all that an entry does not have, by its label.
        steps: Optimizer steps of a run by the name of its entry, −1 where epochs say it.
    """

    runs: tuple[Run, ...]
    settings: dict[str, dict[str, Any]]
    left_out: dict[str, list[str]]
    steps: dict[str, int]


def read_entries(algorithms: Sequence[str], credit: Sequence[str]) -> list[Entry]:
    """What `--algo` and `--credit` name.

    Args:
        algorithms (`list[str]`):
            Names of algorithms, or `NAME=ALGO --flag value …`, an algorithm with flags of its own.
        credit (`list[str]`):
            Functions of one's own, `file.py:function` or `NAME=file.py:function`, over the settings of GRPO.

    Raises:
        ValueError: an unknown algorithm, a name that will not do for a folder, or one that stands twice.
    """
    entries = []
    for text in algorithms:
        name, _, rest = text.partition("=") if re.match(r"[^\s-][^\s=]*=", text) else ("", "", text)
        words = shlex.split(rest)
        algo = words[0] if words else ""
        if algo not in ALGORITHMS:
            raise ValueError(f"--algo {text!r}: {algo!r} is no algorithm{choose(algo, ALGORITHMS)}")
        if not name and len(words) > 1:
            raise ValueError(f"--algo {text!r}: give it a name, NAME={text}")
        label = name or ALGORITHMS[algo][1].title()
        entries.append(Entry(name or algo, label, ("--algo", algo, *words[1:])))
    for text in credit:
        name, _, function = text.rpartition("=")
        name = name or re.split(r"[:.]", function)[-1]
        entries.append(Entry(name, name, ("--algo", "grpo", "--credit", function)))
    seen: set[str] = set()
    for entry in entries:
        if not re.fullmatch(r"[\w+-][\w.+-]*", entry.name):
            raise ValueError(f"the name {entry.name!r} is one of a folder too: take letters, digits, '_', '.' and '-'")
        if entry.name.lower() in seen:
            raise ValueError(f"{entry.name!r} stands twice: name one of them otherwise, NAME={entry.name} …")
        seen.add(entry.name.lower())
    return entries


def make_grid(
    entries: Sequence[Entry], seeds: Sequence[int], *, config: Sequence[str], flags: Sequence[str], folder: Path
) -> Grid:
    """The runs, each with the settings that its algorithm has.

    Args:
        entries (list of [`Entry`]):
            See [`read_entries`].
        seeds (`list[int]`):
            Of the runs of each.
        config (`list[str]`):
            Files of settings or recipes, for all.
        flags (`list[str]`):
            Flags of `trl-credit train`, for all.
        folder (`Path`):
            Of the comparison. Nothing is written.

    Raises:
        ValueError: a setting that one of the runs would refuse; the message names the run.
    """
    settings, files = read_settings(config)
    shared = {name: value for name, value in settings.items() if name not in _OWN}
    _refuse(flags, settings, files)
    if len(set(seeds)) < len(seeds):
        raise ValueError("--seeds names a seed twice: leave out one")
    runs, kept, left_out, steps = [], {}, {}, {}
    for entry in entries:
        try:
            dead = _dead(entry, flags, config)
            own = {name: value for name, value in shared.items() if name not in dead}
            words = [*_without(flags, dead), *entry.words[2:]]
            typed = {*_names(words), *own}
            words += [word for n, value in _DEFAULTS.items() if n not in typed for word in (f"--{n}", value)]
            argv = [*entry.words[:2], *words]
            args = _checked(argv, config, own if own != shared else None)
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"{entry.name}: {one_line(error)}") from error
        kept[entry.name], steps[entry.name] = own, args.max_steps
        left_out |= {entry.label: dead} if dead else {}
        path = folder / "settings" / f"{entry.name}.yaml" if config else None
        runs += [_run(entry, seed, argv, path, folder) for seed in seeds]
    return Grid(tuple(runs), kept, left_out, steps)


def _checked(argv: list[str], config: Sequence[str], changed: dict[str, Any] | None) -> CreditConfig:
    """The configuration that a run will have; the files' settings are `changed` ones where that is not `None`."""
    if changed is None:
        args = parse_arguments([*argv, *(["--config", *config] if config else [])]).args
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "settings.yaml"
            path.write_text(_yaml(changed), encoding="utf-8")
            try:
                args = parse_arguments([*argv, "--config", str(path)]).args
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), " ".join(config))) from error
    if args.save_strategy == "no":
        raise ValueError("save_strategy='no' leaves no checkpoint, which keeps the log: leave it out")
    return args


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100)


def _run(entry: Entry, seed: int, argv: Sequence[str], settings: Path | None, folder: Path) -> Run:
    name = f"seed-{seed}"
    output = folder / "runs" / entry.name / name
    files = ["--config", str(settings)] if settings else []
    words = (*argv[:2], *files, *argv[2:], "--seed", str(seed), "--output_dir", str(output))
    return Run(entry, seed, words, output, folder / "logs" / entry.name / f"{name}.txt")


def _refuse(flags: Sequence[str], settings: dict[str, Any], files: dict[str, str]) -> None:
    for name in _names(flags):
        if name in _OWN:
            raise ValueError(f"--{name} is set by the comparison for each run: leave it out")
    for name, why in _REFUSED.items():
        if name in _names(flags) or settings.get(name):
            where = f"--{name}" if name in _names(flags) else f"{name} in {files[name]}"
            raise ValueError(f"{where}: {why}, leave it out")


def _dead(entry: Entry, flags: Sequence[str], config: Sequence[str]) -> list[str]:
    """The settings for all that do nothing with this algorithm. What stands behind its own name is not among them."""
    argv = [*entry.words[:2], *(["--config", *config] if config else []), *flags, *entry.words[2:]]
    own = _names(entry.words[2:])
    return [name for name in dead_settings(argv) if name not in own]


def _names(words: Iterable[str]) -> list[str]:
    return [w[2:].partition("=")[0].replace("-", "_") for w in words if w.startswith("--")]


def _without(words: Iterable[str], names: Sequence[str]) -> list[str]:
    """Words of a command line without some flags and their values."""
    kept, hide = [], False
    for word in words:
        if word.startswith("--"):
            name = _names([word])[0]
            hide = name in names or name.removeprefix("no_") in names
        if not hide:
            kept.append(word)
    return kept


def write_grid(grid: Grid, folder: Path) -> None:
    """Writes down which runs a folder has, and the settings of each algorithm, where files of settings are given.

    Runs of an earlier call stay; those that are in both must be the same.

    Raises:
        ValueError: a run was made with other settings, or is none of this grid's.
    """
    known = _read(folder)
    content = {
        run.name: {"words": list(run.words), "settings": json.loads(json.dumps(grid.settings[run.entry.name]))}
        for run in grid.runs
    }
    for run in grid.runs:
        if run.name not in known:
            if checkpoints_of(run.folder):
                raise ValueError(f"{run.folder} holds a run that this comparison did not make: choose another folder")
        elif known[run.name] != content[run.name]:
            raise ValueError(
                f"{run.folder} was made with other settings ({_difference(known[run.name], content[run.name])}): take "
                "these, or choose another --output_dir"
            )
    for run in grid.runs:
        if "--config" in run.words:
            path = Path(run.words[run.words.index("--config") + 1])
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _yaml(grid.settings[run.entry.name]))
    folder.mkdir(parents=True, exist_ok=True)
    record = {"version": _VERSION, "runs": known | content}
    write_whole(folder / GRID_FILE, json.dumps(record, indent=1, ensure_ascii=False))


def _read(folder: Path) -> dict[str, dict[str, Any]]:
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


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    for name in dict.fromkeys([*before["settings"], *after["settings"]]):
        old, new = before["settings"].get(name), after["settings"].get(name)
        if old != new:
            return f"{name} {old} → {new}"
    old, new = (_groups(run["words"]) for run in (before, after))
    return next((f"{n} {old.get(n)} → {new.get(n)}" for n in {**old, **new} if old.get(n) != new.get(n)), "their order")


def _groups(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word
            found[flag] = ""
        else:
            found[flag] = f"{found[flag]} {word}".strip()
    return found
