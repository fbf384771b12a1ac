"""What an algorithm keeps in a checkpoint, and which checkpoint of a run is whole."""

import json
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


STATE_FILE = "credit_state.json"
STATE_VERSION = 1
_TRAINER_STATE = "trainer_state.json"  # the last file of a checkpoint that is written


def write_state(folder: str | Path, parts: dict[str, dict[str, Any]]) -> None:
    """Writes the state of an algorithm's parts by name (`{}` where it has none), whole or not at all."""
    path = Path(folder) / STATE_FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"version": STATE_VERSION, "parts": parts}))
    partial.replace(path)


def read_state(folder: str | Path, *, wanted: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What `write_state` wrote, for a run that keeps the parts of `wanted` (name → the setting that has them kept).

    A checkpoint of plain TRL has no such file, which is fine where nothing is wanted.

    Raises:
        ValueError: the file is missing, damaged, of a newer version, or holds other parts than the run has; the
            message names it and says what to do.
    """
    path = Path(folder) / STATE_FILE
    settings = ", ".join(wanted.values())
    if not path.is_file():
        if wanted:
            raise ValueError(
                f"there is no {path}, so the state of {settings} cannot be resumed: resume from a checkpoint that was "
                "written with these settings, or leave them out."
            )
        return {}
    try:
        content = json.loads(path.read_text())
        version, parts = content["version"], content["parts"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged or was not written by trl_credit ({error}): resume from another checkpoint."
        ) from error
    if version > STATE_VERSION:
        raise ValueError(
            f"{path} has version {version}, written by a newer trl_credit, and this one reads up to {STATE_VERSION}: "
            "upgrade trl_credit, or resume from another checkpoint."
        )
    if missing := sorted(set(wanted) - set(parts)):
        raise ValueError(
            f"{path} holds no state for {', '.join(wanted[name] for name in missing)}: resume from a checkpoint that "
            "was written with it, or leave it out."
        )
    if unknown := sorted(set(parts) - set(wanted)):
        raise ValueError(
            f"{path} holds state that this run would lose ({', '.join(unknown)}): resume with the algorithm and "
            "settings that wrote it, or start anew from its weights, with the checkpoint as the model."
        )
    return parts


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written to its end: its last file is there and whole."""
    try:
        return "global_step" in json.loads((Path(checkpoint) / _TRAINER_STATE).read_text())
    except (OSError, ValueError):
        return False


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Optimizer steps before a complete checkpoint; 0 for `None`, which is a start from the beginning."""
    if not checkpoint:
        return 0
    return int(json.loads((Path(checkpoint) / "trainer_state.json").read_text())["global_step"])


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or `None`. What a killed process left half written is passed over."""
    found = []
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.rpartition("-")[2]
        if step.isdigit() and is_complete(folder):
            found.append((int(step), folder))
    return max(found)[1] if found else None
