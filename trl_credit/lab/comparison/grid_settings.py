"""The settings of every algorithm of a grid, from shared files and flags, settings held equal, and a sweep."""

import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...config.trl_settings import TRL_ACTS
from ...demo import task_of_model
from ...settings.arguments import Choices, config_fields, inactive_settings, parse_arguments
from ...settings.files import read_settings
from ...support.errors import lines_of, together
from ...support.signals import without_flag
from ..evaluation.protocols import PROTOCOLS
from .entries import Entry, Sweep
from .grid import Grid


# settings that the grid sets for each run
_SET_BY_GRID = ("algo", "seed", "output_dir", "resume_from_checkpoint", "overwrite_output_dir", "run_name")
_REFUSED = {
    "push_to_hub": "a comparison pushes nothing",
    "accelerate_config": "each run is one process",
    "data_seed": "--seeds has a seed for each run",
}
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
        ValueError: a setting that one of the runs refuses; the message names the run. Seeds of the verdict that are
            tuning seeds too.
    """
    settings, files = read_settings(shared.config)
    _refuse(shared, settings, files)
    grid = Grid(folder, list(entries), list(seeds or ()), shared.sweep)
    config_flags = ["--config", *shared.config] if shared.config else []
    fields_of = {entry.name: config_fields([*config_flags, *entry.words]) for entry in entries}
    every = set().union(*fields_of.values())
    dead = set(_flag_names(shared.flags)) - TRL_ACTS.keys()  # by every run
    on_demo = True
    for entry in entries:
        try:
            choices = _add(grid, entry, shared, settings, lacks=every - fields_of[entry.name])
        except (ValueError, OSError, ImportError) as error:
            raise together([ValueError(f"{entry.name}: {line}") for line in lines_of(error)]) from error
        on_demo = on_demo and task_of_model(choices.model.model_name_or_path) is not None
        dead = dead.intersection(grid.left_out.get(entry.label, ()))
    if dead:
        raise ValueError(f"--{min(dead)} does nothing for any of these algorithms: leave it out, or set what it needs")
    if seeds is None:
        grid.seeds = list(range(_SEEDS_ON_DEMO if on_demo else _SEEDS))
    if len(set(grid.seeds)) < len(grid.seeds):
        raise ValueError("--seeds names a seed twice: leave out one")
    _check_sweep(grid)
    return grid


def _add(grid: Grid, entry: Entry, shared: Shared, settings: dict[str, Any], *, lacks: Collection[str]) -> Choices:
    """Adds the settings of one algorithm to the grid, without fields of others that it `lacks`; returns its parsed
    arguments."""
    algo, own_flags = entry.words[:2], entry.words[2:]
    equal = [word for name, value in shared.equal.items() for word in (f"--{name}", value)]
    swept = [f"--{shared.sweep.name}", shared.sweep.values[0]] if shared.sweep else []
    for name in _flag_names(own_flags):
        if name in _flag_names([*equal, *swept]):
            raise ValueError(f"--{name} is also in {'--equal' if name in shared.equal else '--sweep'}: leave out one")
    config_flags = ["--config", *shared.config] if shared.config else []
    inactive = inactive_settings([*algo, *config_flags, *shared.flags, *own_flags, *swept, *equal], lacks=lacks)
    if dead := [name for name in shared.equal if name in inactive]:
        raise ValueError(f"--equal {dead[0]}={shared.equal[dead[0]]} does nothing for {entry.label}: leave it out")
    # our own flags of an entry itself are never left out
    left_out = [name for name in inactive if name in TRL_ACTS or name not in _flag_names(own_flags)]
    of_files = {name: value for name, value in settings.items() if name not in _SET_BY_GRID}
    own = {name: value for name, value in of_files.items() if name not in left_out}
    words = [*shared.flags, *own_flags]
    for name in left_out:
        words = without_flag(without_flag(words, name), f"no_{name}")
    words += equal
    given = {*_flag_names(words), *own}
    words += [word for n, value in _DEFAULTS.items() if n not in given for word in (f"--{n}", value)]
    if left_out:
        grid.left_out[entry.label] = left_out
    changed = own if own != of_files else None
    for value in shared.sweep.values if grid.sweeps(entry) else (None,):
        at = [] if value is None else [f"--{shared.sweep.name}", value]
        choices = _checked([*algo, *words, *at], config_flags, changed)
    file = ["--config", str(grid.folder / "settings" / f"{entry.name}.yaml")] if shared.config else []
    grid.words[entry.name] = (*algo, *file, *words)
    grid.settings[entry.name], grid.steps[entry.name] = own, choices.args.max_steps
    return choices


def _checked(argv: list[str], config_flags: list[str], changed: dict[str, Any] | None) -> Choices:
    """The parsed arguments of a run. `changed` replaces the settings of the files if some were left out."""
    if changed is None:
        choices = parse_arguments([*argv, *config_flags], protocols=PROTOCOLS)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "settings.yaml"
            path.write_text(as_yaml(changed), encoding="utf-8")
            try:
                choices = parse_arguments([*argv, "--config", str(path)], protocols=PROTOCOLS)
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), " ".join(config_flags[1:]))) from error
    if choices.args.save_strategy == "no":
        raise ValueError("save_strategy='no' leaves no checkpoint to read the log from: leave it out")
    return choices


def as_yaml(settings: dict[str, Any]) -> str:
    """Settings as the text of a file for `--config`."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100)


def _refuse(shared: Shared, settings: dict[str, Any], files: dict[str, str]) -> None:
    given = _flag_names(shared.flags)
    sweep = [shared.sweep.name] if shared.sweep else []
    for name in [*given, *shared.equal, *sweep]:
        if name in _SET_BY_GRID:
            raise ValueError(f"--{name} is set by the comparison for each run: leave it out")
    for name in [*shared.equal, *sweep]:
        if [*given, *shared.equal, *sweep].count(name) > 1:
            raise ValueError(f"{name} is set twice, among the flags, --equal and --sweep: leave out one")
    for name, why in _REFUSED.items():
        if name in [*given, *shared.equal, *sweep] or settings.get(name):
            where = f"{name} in {files[name]}" if name in files and name not in given else f"--{name}"
            raise ValueError(f"{where}: {why}, leave it out")


def _check_sweep(grid: Grid) -> None:
    if grid.sweep is None:
        return
    if not any(map(grid.sweeps, grid.entries)):
        raise ValueError(f"--sweep {grid.sweep.name} does nothing for any of these algorithms: leave it out")
    if both := sorted(set(grid.seeds) & set(grid.sweep.seeds)):
        raise ValueError(
            f"seed {both[0]} is in --seeds and in --tuning_seeds: a verdict on the runs that chose the value is "
            "biased, use other seeds for one of them"
        )


def _flag_names(words: Iterable[str]) -> list[str]:
    return [w[2:].partition("=")[0].replace("-", "_") for w in words if w.startswith("--")]
