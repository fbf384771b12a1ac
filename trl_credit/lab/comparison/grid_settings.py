"""The settings of every algorithm of a grid, from shared files and flags, settings held equal, and a sweep."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...config.trl_settings import TRL_ACTS
from ...demo import task_of_model
from ...settings.arguments import Choices, config_fields, inactive_settings, parse_arguments
from ...settings.files import read_settings
from ...settings.parser import typed_fields
from ...support.errors import lines_of, together
from ...support.signals import without_flag
from ..evaluation.protocols import PROTOCOLS
from .entries import Entry, Sweep
from .grid import Grid, settings_file


# settings that the grid sets for each run
_SET_BY_GRID = ("algo", "seed", "output_dir", "resume_from_checkpoint", "overwrite_output_dir", "run_name")
_REFUSED = ("push_to_hub", "accelerate_config", "data_seed")
_DEFAULTS = {"logging_steps": "1", "save_total_limit": "1", "disable_tqdm": "true"}
_SEEDS_ON_DEMO, _SEEDS = 10, 5  # by default


@dataclass(frozen=True)
class Shared:
    """What all runs of a comparison share.

    Attributes:
        config: Files of settings or recipes.
        flags: Flags of `trl-credit train`, left out for an algorithm that does not have them.
        equal: Settings that are held equal; an algorithm that does not have one is refused.
        sweep: The setting that is tuned for each algorithm that has it.
    """

    config: Sequence[str] = ()
    flags: Sequence[str] = ()
    equal: dict[str, str] = field(default_factory=dict)
    sweep: Sweep | None = None

    @property
    def config_words(self) -> list[str]:
        """The files as words of a command line."""
        return ["--config", *self.config] if self.config else []

    @property
    def fixed(self) -> dict[str, str]:
        """The settings of `--equal` and `--sweep`, with the first value of a sweep."""
        return self.equal | ({self.sweep.name: self.sweep.values[0]} if self.sweep else {})


def make_grid(entries: Sequence[Entry], seeds: Sequence[int] | None, shared: Shared, *, folder: Path) -> Grid:
    """The runs, each with the settings that its algorithm has. Nothing is written.

    Args:
        entries (list of [`Entry`]):
            See [`~trl_credit.lab.comparison.entries.read_entries`].
        seeds (`list[int]` or `None`):
            Seeds of each entry. By default 0 to 9 on an embedded task and 0 to 4 elsewhere.
        shared ([`Shared`]):
            The settings of all runs.
        folder (`Path`):
            Folder of the comparison.

    Raises:
        ValueError: a setting that one of the runs refuses; the message names the run.
    """
    settings, files = read_settings(shared.config)
    _refuse(shared, settings, files)
    fields_of = {entry.name: config_fields([*shared.config_words, *entry.words]) for entry in entries}
    every = set().union(*fields_of.values())
    resolved, models = [], []
    for entry in entries:
        try:
            algorithm, choices = _resolve(entry, shared, settings, lacks=every - fields_of[entry.name], folder=folder)
        except (ValueError, OSError, ImportError) as error:
            raise together([ValueError(f"{entry.name}: {line}") for line in lines_of(error)]) from error
        resolved.append(algorithm)
        models.append(choices.model.model_name_or_path)
    dead = set(typed_fields(shared.flags)) - TRL_ACTS.keys() | ({shared.sweep.name} if shared.sweep else set())
    if dead := dead.intersection(*(entry.left_out for entry in resolved)):
        raise ValueError(f"--{min(dead)} does nothing for any of these algorithms: leave it out, or set what it needs")
    if seeds is None:
        seeds = range(_SEEDS_ON_DEMO if all(map(task_of_model, models)) else _SEEDS)
    if len(set(seeds)) < len(seeds):
        raise ValueError("--seeds names a seed twice: leave out one")
    return Grid(folder, resolved, list(seeds), shared.sweep)


def _resolve(
    entry: Entry, shared: Shared, settings: dict[str, Any], *, lacks: Collection[str], folder: Path
) -> tuple[Entry, Choices]:
    """An algorithm with the shared settings that it has, without fields of others that it `lacks`, and its parsed
    arguments."""
    algo, own_flags = entry.words[:2], entry.words[2:]
    own_names = typed_fields(own_flags)
    if twice := [name for name in own_names if name in shared.fixed]:
        raise ValueError(f"--{twice[0]} is also in --equal or --sweep: leave out one")
    argv = [*algo, *shared.config_words, *shared.flags, *own_flags, *_as_flags(shared.fixed)]
    inactive = inactive_settings(argv, lacks=lacks)
    if dead := [name for name in shared.equal if name in inactive]:
        raise ValueError(f"--equal {dead[0]}={shared.equal[dead[0]]} does nothing for {entry.label}: leave it out")
    # our own flags of an entry itself are never left out
    left_out = tuple(name for name in inactive if name in TRL_ACTS or name not in own_names)
    without = (*left_out, *_SET_BY_GRID)
    words = [*shared.flags, *own_flags, *_as_flags(shared.equal)]
    for name in left_out:
        words = without_flag(without_flag(words, name), f"no_{name}")
    of_files = {name: value for name, value in settings.items() if name not in without}
    words += _as_flags({n: x for n, x in _DEFAULTS.items() if n not in of_files and n not in typed_fields(words)})
    is_swept = shared.sweep is not None and shared.sweep.name not in left_out
    for value in shared.sweep.values if is_swept else (None,):
        swept = [] if value is None else [f"--{shared.sweep.name}", value]
        argv = [*algo, *shared.config_words, *words, *swept]
        choices = parse_arguments(argv, protocols=PROTOCOLS, lacks=without)
    if choices.args.save_strategy == "no":
        raise ValueError("save_strategy='no' leaves no checkpoint to read the log from: leave it out")
    file = ["--config", str(settings_file(folder, entry))] if of_files else []
    words = (*algo, *file, *words)
    return replace(entry, words=words, settings=of_files, left_out=left_out, steps=choices.args.max_steps), choices


def _refuse(shared: Shared, settings: dict[str, Any], files: dict[str, str]) -> None:
    """Raises `ValueError` for settings that a comparison sets itself, or cannot have."""
    names = [*typed_fields(shared.flags), *shared.equal, *([shared.sweep.name] if shared.sweep else [])]
    for name in names:
        if name in _SET_BY_GRID:
            raise ValueError(f"--{name} is set by the comparison for each run: leave it out")
        if name in shared.fixed and names.count(name) > 1:
            raise ValueError(f"{name} is set twice, among the flags, --equal and --sweep: leave out one")
    for name in _REFUSED:
        if name in names or settings.get(name):
            where = f" in {files[name]}" if name in files else ""
            raise ValueError(f"{name}{where} has no use in a comparison: leave it out")


def _as_flags(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]
