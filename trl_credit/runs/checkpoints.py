"""Reads and writes what a run adds to its checkpoints, and finds the checkpoint to resume from."""

import errno
import json
from collections.abc import Callable, Iterator
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

# how a run stores its optimizer: name → description, and the files that show it
LAYOUTS = {
    "ZeRO-3": ("with DeepSpeed ZeRO-3", "global_step*/*zero_pp_rank_*_model_states.pt"),
    "ZeRO-1 or ZeRO-2": ("with DeepSpeed ZeRO-1 or ZeRO-2", "global_step*/*optim_states.pt"),
    "FSDP": ("with FSDP", "optimizer[._][b0]*"),  # optimizer.bin, or the folder optimizer_0
    "plain": ("without DeepSpeed and FSDP", "optimizer.pt"),
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
        content = _read(path, _check_state, fix="resume from another checkpoint")
    parts = content["parts"]
    if missing := sorted(set(needed) - set(parts)):
        what = f"{path} holds no state" if path.is_file() else f"there is no {path} with the state"
        settings = ", ".join(needed[name] for name in missing)
        raise ValueError(f"{what} for {settings}: resume from a checkpoint of these settings, or leave them out.")
    if unknown := sorted(set(parts) - set(needed)):
        raise ValueError(
            f"{path} holds state that this run would lose ({', '.join(unknown)}): resume with the settings that wrote "
            "it, or start a new run with the checkpoint as the model."
        )
    return {"parts": parts, "position": content.get("position"), "found": content.get("found") or {}}


def read_run(folder: str | Path) -> dict[str, Any] | None:
    """What [`~trl_credit.runs.folder.RunFolder`] keeps in a folder; `None` without a file.

    Raises:
        ValueError: the file is damaged, or of a newer version.
    """
    path = Path(folder) / RUN_FILE
    fix = "remove it if all checkpoints in the folder are of one run, or use another folder"
    return _read(path, _check_run, fix=fix) if path.is_file() else None


def _read(path: Path, check: Callable[[Any], None], *, fix: str) -> dict[str, Any]:
    try:
        content = read_json(path)
        if type(content["version"]) is not int:
            raise ValueError(f"version {content['version']!r} is not a number")
        check(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or was not written by trl_credit ({error}): {fix}.") from error
    if content["version"] > VERSION:
        found = f"version {content['version']} of a newer trl_credit, and this one reads up to {VERSION}"
        raise ValueError(f"{path} has {found}: upgrade trl_credit, or {fix}.")
    return content


def _check_state(content: dict[str, Any]) -> None:
    if not all(isinstance(part, dict) for part in content["parts"].values()):
        raise ValueError("the state of a part is not a mapping")


def _check_run(content: dict[str, Any]) -> None:
    starts = [(start["from"], start["id"]) for start in content["lives"]]
    if not starts or not all(isinstance(step, int) and isinstance(id_, str) for step, id_ in starts):
        raise ValueError("a start has no step or no id")
    content["identity"].keys()


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


def finished_at(checkpoint: Path) -> float:
    """When a complete checkpoint was written, in seconds since the epoch."""
    return (checkpoint / _TRAINER_STATE).stat().st_mtime


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
    found = []
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.rpartition("-")[2]
        if step.isdigit() and folder.is_dir() and (is_complete(folder) or not complete):
            found.append((int(step), folder))
    return [folder for _, folder in sorted(found)]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of the run that was started last in a folder, or `None`.

    Skips checkpoints of other runs, and those that this run abandoned when it resumed from an earlier step. Without a
    record of the run (plain TRL), all checkpoints count as those of one run.
    """
    record, found = read_run(output_dir), checkpoints_of(output_dir, complete=True)
    if record is not None:
        found = [checkpoint for checkpoint in found if _belongs_to(record, checkpoint)]
    return found[-1] if found else None


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
        kept, fix = "there is no complete checkpoint", "train again"
        if (last := last_checkpoint(output_dir)) is not None:
            kept, fix = f"the last complete checkpoint is {short_path(last)}", "go on with resume_from_checkpoint=True"
        what = f"disk full in {str(short_path(output_dir))!r}"
        raise OSError(errno.ENOSPC, f"{what}: {kept}; make room, and {fix}") from None


def _belongs_to(record: dict[str, Any], checkpoint: Path) -> bool:
    try:
        other, step = read_run(checkpoint), checkpoint_step(checkpoint)
    except FileNotFoundError:  # its run is still training, and has just removed it
        return False
    ids, first_steps = zip(*((start["id"], start["from"]) for start in record["lives"]), strict=True)
    if other is None:
        return step <= first_steps[0]  # the run was resumed from a checkpoint of plain TRL
    own_id = other["lives"][-1]["id"]
    if own_id not in ids:
        return False
    following = first_steps[ids.index(own_id) + 1 :]
    return not following or step <= following[0]


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
    there = next((name for name, (_, files) in LAYOUTS.items() if any(Path(checkpoint).glob(files))), None)
    this = f"a run {LAYOUTS[here][0]}"
    parts = len({path.name for path in Path(checkpoint).glob("global_step*/*optim_states.pt")})
    if there not in (None, here):
        what = f"the optimizer of a run {LAYOUTS[there][0]}, which {this} cannot read"
        fix = "launch with the configuration of that run (accelerate launch --config_file …)"
    elif not here.startswith("ZeRO") or parts == processes:  # without an optimizer, others continue with a warning
        return
    elif there is None:
        what = f"no optimizer (save_only_model=True?), without which {this} cannot resume"
        fix = "take another checkpoint"
    else:
        what, fix = f"the optimizer of {parts} DeepSpeed processes, and this run has {processes}", f"launch {parts}"
    raise ValueError(f"{checkpoint} holds {what}: {fix}, or start a new run with {str(checkpoint)!r} as the model.")


def missing_from(checkpoint: str | Path, *, here: str, rank: int, processes: int) -> dict[str, str]:
    """Files that a process needs and a checkpoint lacks → the effect on the run."""
    effects = {f"rng_state_{rank}.pth" if processes > 1 else "rng_state.pth": "random numbers differ"}
    if here == "plain":
        effects["optimizer.pt"] = "the optimizer's moments start at zero"
    if here in ("plain", "FSDP"):
        effects["scheduler.pt"] = "the learning rate's schedule starts again"
    return {name: effect for name, effect in effects.items() if not (Path(checkpoint) / name).is_file()}
