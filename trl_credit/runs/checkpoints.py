"""Reads and writes what a run adds to its checkpoints, and finds the checkpoint to resume from."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..support.errors import disk_full, one_line
from ..support.files import read_json, short_path, write_atomically


STATE_FILE = "credit_state.json"
RUN_FILE = "credit_run.json"  # in the folder of a run and in each of its checkpoints
VERSION = 2  # of both
_TRAINER_STATE = "trainer_state.json"  # the last file of a checkpoint that is written

# how a run stores its optimizer → the files that show it
LAYOUTS = {
    "ZeRO-3": "global_step*/*zero_pp_rank_*_model_states.pt",
    "ZeRO-1 or ZeRO-2": "global_step*/*optim_states.pt",
    "FSDP": "optimizer[._][b0]*",  # optimizer.bin, or the folder optimizer_0
    "plain": "optimizer.pt",
}


def write_state(folder: str | Path, state: dict[str, Any]) -> None:
    """Writes a run's state atomically.

    Args:
        state (`dict`):
            JSON types. `parts`: state of each part by name, `{}` for a part without any. `position`: micro-batches of
            the generation batch that have been trained on, and their total number. `found`: what the run has found out
            about its model, so that a resumed run need not repeat it.
    """
    write_atomically(Path(folder) / STATE_FILE, json.dumps({"version": VERSION, **state}))


def read_state(folder: str | Path, *, needed: dict[str, str]) -> dict[str, Any]:
    """The state that [`write_state`] wrote. A checkpoint of plain TRL gives no parts and no position.

    Args:
        needed (`dict[str, str]`):
            Parts of this run: name → the setting that a part belongs to.

    Raises:
        ValueError: the file is missing, damaged, of a newer version, or holds other parts than `needed`. The message
            names the setting and the fix.
    """
    path, content = Path(folder) / STATE_FILE, {"parts": {}}
    if path.is_file():
        content = _read(path, fix="resume from another checkpoint")
    parts = content["parts"]
    if missing := [needed[name] for name in sorted(needed.keys() - parts.keys())]:
        what = f"{path} holds no state for {', '.join(missing)}"
        raise ValueError(f"{what}: resume from a checkpoint of these settings, or leave them out.")
    if unknown := sorted(parts.keys() - needed.keys()):
        what = f"{path} holds state that this run would lose ({', '.join(unknown)})"
        fix = "resume with the settings that wrote it, or start a new run with the checkpoint as the model"
        raise ValueError(f"{what}: {fix}.")
    return {"parts": parts, "position": content.get("position"), "found": content.get("found") or {}}


def read_run(folder: str | Path) -> dict[str, Any] | None:
    """What [`~trl_credit.runs.folder.RunFolder`] keeps in a folder; `None` without a file.

    Raises:
        ValueError: the file is damaged, or of a newer version.
    """
    path = Path(folder) / RUN_FILE
    fix = "remove it if all checkpoints in the folder are of one run, or use another folder"
    return _read(path, fix=fix) if path.is_file() else None


def _read(path: Path, *, fix: str) -> dict[str, Any]:
    try:
        content = read_json(path)
        is_newer = int(content["version"]) > VERSION
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is damaged or was not written by trl_credit ({one_line(error)}): {fix}.") from error
    if is_newer:
        raise ValueError(
            f"{path} has version {content['version']} of a newer trl_credit: upgrade trl_credit, or {fix}."
        )
    return content


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written to its end: its last file can be read."""
    try:
        return "global_step" in _state_of_trainer(checkpoint)
    except (OSError, ValueError, TypeError):
        return False


def mark_incomplete(checkpoint: Path) -> None:
    """Marks a checkpoint as incomplete before it is overwritten: removes the file that is written last, and all links,
    through which files elsewhere would be overwritten."""
    for path in (checkpoint, *checkpoint.glob("*")):
        if path.is_symlink():
            path.unlink()
    (checkpoint / _TRAINER_STATE).unlink(missing_ok=True)


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Optimizer steps before a complete checkpoint; 0 for `None`."""
    return _state_of_trainer(checkpoint)["global_step"] if checkpoint else 0


def planned_steps(checkpoint: str | Path) -> int:
    """Optimizer steps that the run of a complete checkpoint was to make."""
    return _state_of_trainer(checkpoint).get("max_steps", 0)


def _state_of_trainer(checkpoint: str | Path) -> dict[str, int]:
    return read_json(Path(checkpoint) / _TRAINER_STATE)


def checkpoints_of(output_dir: str | Path, *, complete: bool = False) -> list[Path]:
    """The checkpoints in a folder by step; with `complete`, without unfinished ones."""
    folders = {}
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.rpartition("-")[2]
        if step.isdigit() and folder.is_dir() and (is_complete(folder) or not complete):
            folders[int(step)] = folder
    return [folders[step] for step in sorted(folders)]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of the run that was started last in a folder, or `None`.

    Skips checkpoints of other runs, and those that this run abandoned when it resumed from an earlier step. Without a
    record of the run (plain TRL), all checkpoints count as those of one run.
    """
    record, checkpoints = read_run(output_dir), checkpoints_of(output_dir, complete=True)
    own = (c for c in reversed(checkpoints) if record is None or _belongs_to(record["lives"], c))
    return next(own, None)


@contextmanager
def file_errors(output_dir: str | Path) -> Iterator[None]:
    """Context manager in which a run reads its checkpoint and writes others.

    Raises:
        OSError: the disk is full; one line with the checkpoint that is left.
        ValueError: a file of the checkpoint holds code instead of tensors.
    """
    try:
        yield
    except UnpicklingError as error:
        what = f"a file of the checkpoint holds more than tensors, and was not loaded ({one_line(error)[:90]} …)"
        raise ValueError(f"{what}: take another checkpoint, or start a new run with this one as the model") from None
    except Exception as error:  # libraries raise many types for it
        if not disk_full(error):
            raise
        last = last_checkpoint(output_dir)
        kept = (
            "there is no complete checkpoint" if last is None else f"the last complete checkpoint is {short_path(last)}"
        )
        fix = "make room, and train again" if last is None else "make room, and go on with resume_from_checkpoint=True"
        raise OSError(errno.ENOSPC, f"disk full in {str(short_path(output_dir))!r}: {kept}; {fix}") from None


def _belongs_to(starts: list[dict[str, Any]], checkpoint: Path) -> bool:
    """Whether the run with these starts wrote a checkpoint, and has not abandoned it since."""
    try:
        other, step = read_run(checkpoint), checkpoint_step(checkpoint)
    except FileNotFoundError:  # its run is still training, and has just removed it
        return False
    if other is None:
        return step <= starts[0]["from"]  # the run was resumed from a checkpoint of plain TRL
    own_id = other["lives"][-1]["id"]
    after = [i for i, start in enumerate(starts, 1) if start["id"] == own_id]
    return bool(after) and all(step <= start["from"] for start in starts[after[0] : after[0] + 1])


def check_layout(checkpoint: str | Path, *, here: str, processes: int) -> None:
    """Refuses a checkpoint whose optimizer this run cannot read, which transformers would skip or misread.

    Args:
        here (`str`):
            Layout of this run, a key of `LAYOUTS`.
        processes (`int`):
            Number of processes of this run.

    Raises:
        ValueError: the layouts differ, or DeepSpeed has another number of processes.
    """
    there = next((name for name, files in LAYOUTS.items() if any(Path(checkpoint).glob(files))), None)
    parts = len({path.name for path in Path(checkpoint).glob("global_step*/*optim_states.pt")})
    if there not in (None, here):
        fix = "launch with the configuration of that run (accelerate launch --config_file …)"
    elif not here.startswith("ZeRO") or parts == processes:  # without an optimizer, others continue with a warning
        return
    else:
        fix = f"launch {parts}" if parts else "take another checkpoint"
    what = f"{checkpoint} holds the optimizer of layout {there} of {parts or 1} processes"
    this = f"this run has layout {here} and {processes}"
    raise ValueError(f"{what}, and {this}: {fix}, or start a new run with {str(checkpoint)!r} as the model.")


def missing_from(checkpoint: str | Path, *, here: str, rank: int, processes: int) -> list[str]:
    """Files that a process needs and a checkpoint lacks."""
    names = [f"rng_state_{rank}.pth" if processes > 1 else "rng_state.pth"]
    names += ["optimizer.pt"] if here == "plain" else []
    names += ["scheduler.pt"] if here in ("plain", "FSDP") else []
    return [name for name in names if not (Path(checkpoint) / name).is_file()]
