"""`grid.json`: the runs of a comparison's folder with their settings, and the primary metric that was declared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runs.checkpoints import checkpoints_of
from ...runs.identity import differences, in_words
from ...support.errors import one_line
from ...support.files import read_json, write_atomically
from .grid import TUNING, VERDICT, Grid, Run
from .grid_settings import as_yaml


GRID_FILE = "grid.json"
_VERSION = 2


def write_grid(grid: Grid, runs: Sequence[Run], *, primary: str) -> str:
    """Adds runs to `grid.json`, and writes the settings of each algorithm if files of settings are given.

    Runs of earlier grids stay; a run that is in both must be the same.

    Returns:
        `str`: the primary metric that was declared when the file was first written.

    Raises:
        ValueError: a run was made with other settings, or not by a grid; a seed is used for tuning and for the verdict.
    """
    path = grid.folder / GRID_FILE
    declared, known = _read_grid(path, primary)
    content = {
        run.name: {
            "words": list(run.words),
            "settings": json.loads(json.dumps(grid.settings[run.entry.name])),
            "phase": run.phase,
        }
        for run in runs
    }
    _check_phases([known, content])
    for run in runs:
        before, now = known.get(run.name), content[run.name]
        if before is None and checkpoints_of(run.folder):
            raise ValueError(f"{run.folder} holds a run that this comparison did not make: choose another folder")
        if before is not None and before != now:
            changed = differences(_all_settings(before), _all_settings(now), defaults={})
            other = f"other settings ({in_words(changed) or 'their order'})"
            raise ValueError(f"{run.folder} was made with {other}: use these, or choose another --output_dir")
    for run in runs:
        if "--config" in run.words:
            write_atomically(run.words[run.words.index("--config") + 1], as_yaml(grid.settings[run.entry.name]))
    record = {"version": _VERSION, "primary": declared, "runs": known | content}
    write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False))
    return declared


def _read_grid(path: Path, primary: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The declared primary metric, this one if there is no file yet, and the runs by name."""
    if not path.is_file():
        return primary, {}
    try:
        record = read_json(path)
        version, runs = record["version"], record["runs"]
        if version != _VERSION or not all(
            isinstance(run["words"], list) and run["phase"] in (TUNING, VERDICT) for run in runs.values()
        ):
            raise ValueError(f"version {version}")
        return str(record["primary"]), runs
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or of another release ({one_line(error)}): choose another folder"
        ) from error


def _check_phases(grids: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Raises `ValueError` if an algorithm was tuned, now or in an earlier grid, on a seed of its verdict."""
    seeds: dict[str, set[tuple[str, str]]] = {TUNING: set(), VERDICT: set()}
    for grid in grids:
        for name, run in grid.items():
            seeds[run["phase"]].add((name.partition("/")[0], name.rpartition("/")[2]))
    if both := sorted(seeds[TUNING] & seeds[VERDICT]):
        name, seed = both[0]
        raise ValueError(f"{name} has {seed} both for tuning and for the verdict: choose other seeds or another folder")


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
    flags = {flag: " ".join(words) for flag, words in values.items()}
    return {**run["settings"], **flags, "phase": run["phase"]}
