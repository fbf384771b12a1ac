"""What an algorithm keeps in a checkpoint, and which checkpoint of a run is whole."""

import json
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..files import write_whole


STATE_FILE = "credit_state.json"
STATE_VERSION = 1
RUN_FILE = "credit_run.json"  # in the folder of a run and in each of its checkpoints
RUN_VERSION = 1
LAYOUTS = {
    "plain": "without DeepSpeed and FSDP",
    "ZeRO-1 or ZeRO-2": "with DeepSpeed ZeRO-1 or ZeRO-2",
    "ZeRO-3": "with DeepSpeed ZeRO-3",
    "FSDP": "with FSDP",
}
_TRAINER_STATE = "trainer_state.json"  # the last file of a checkpoint that is written


def write_state(
    folder: str | Path,
    parts: dict[str, dict[str, Any]],
    *,
    position: tuple[int, int] = (0, 1),
    found: dict[str, Any] | None = None,
) -> None:
    """Writes the state of an algorithm's parts by name (`{}` where it has none), whole or not at all.

    `position`: micro-batches of the generation batch that have been trained on, and those that it has. `found`: what
    the run has found out about its model, which a resumed one need not find out again; JSON types.
    """
    content = {"version": STATE_VERSION, "parts": parts, "position": position, "found": found or {}}
    write_whole(Path(folder) / STATE_FILE, json.dumps(content))


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
    content = _content(path)
    version, parts = content["version"], content["parts"]
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


def read_position(folder: str | Path) -> list[int] | None:
    """The `position` that `write_state` wrote; `None` where there is none."""
    path = Path(folder) / STATE_FILE
    return _content(path).get("position") if path.is_file() else None


def read_found(folder: str | Path) -> dict[str, Any]:
    """What `write_state` wrote as `found`."""
    path = Path(folder) / STATE_FILE
    return (_content(path).get("found") or {}) if path.is_file() else {}


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, parts = content["version"], content["parts"]
        if type(version) is not int:
            raise ValueError(f"its version {version!r} is no number")
        if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
            raise ValueError("its parts are no mappings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged or was not written by trl_credit ({error}): resume from another checkpoint."
        ) from error
    return content


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written to its end: its last file is there and whole."""
    try:
        return "global_step" in json.loads((Path(checkpoint) / _TRAINER_STATE).read_text())
    except (OSError, ValueError, RecursionError):
        return False


def unmark(checkpoint: Path) -> None:
    """Makes a checkpoint that is about to be overwritten one that is not whole."""
    (checkpoint / _TRAINER_STATE).unlink(missing_ok=True)


def finished_at(checkpoint: Path) -> float:
    """When a complete checkpoint was written, in seconds as `time.time` counts."""
    return (checkpoint / _TRAINER_STATE).stat().st_mtime


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Optimizer steps before a complete checkpoint; 0 for `None`, which is a start from the beginning."""
    if not checkpoint:
        return 0
    return int(json.loads((Path(checkpoint) / _TRAINER_STATE).read_text())["global_step"])


def read_run(folder: str | Path) -> dict[str, Any] | None:
    """What [`~trl_credit.trainer.run_folder.RunFolder`] keeps in a folder, or `None` where there is nothing.

    Raises:
        ValueError: the file is damaged, or of a newer version.
    """
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["version"]
        if type(version) is not int or not isinstance(record["identity"], dict):
            raise ValueError("its version is no number, or its identity no mapping")
        if not all(isinstance(life["from"], int) and isinstance(life["id"], str) for life in record["lives"]):
            raise ValueError("its lives are damaged")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove it if the folder is that of one run, or use another folder."
        ) from error
    if version > RUN_VERSION:
        raise ValueError(f"{path} has version {version}, written by a newer trl_credit: upgrade trl_credit.")
    return record


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest whole checkpoint of the run that was started last in a folder, or `None`.

    What a killed process left half written is passed over, and so is what belongs to another run, or to a life of this
    one that was given up when an earlier checkpoint was resumed. Where the folder knows of no run (one of trl_credit
    0.1, or of plain TRL), all its checkpoints are one run's.
    """
    record, found = read_run(output_dir), checkpoints_of(output_dir, whole=True)
    if record is not None:
        found = [checkpoint for checkpoint in found if _is_of(record, checkpoint)]
    return found[-1] if found else None


def _is_of(record: dict[str, Any], checkpoint: Path) -> bool:
    try:
        own, step = read_run(checkpoint), checkpoint_step(checkpoint)
    except FileNotFoundError:  # its run goes on, and has just removed it
        return False
    ids = [life["id"] for life in record["lives"]]
    if own is None:
        return step <= record["lives"][0]["from"]  # resumed from one of 0.1
    own_id = own["lives"][-1]["id"]
    if own_id not in ids:
        return False
    place = ids.index(own_id) + 1
    return place == len(ids) or step <= record["lives"][place]["from"]


def checkpoints_of(output_dir: str | Path, *, whole: bool = False) -> list[Path]:
    """The checkpoints in a folder by their steps, also half-written ones unless `whole`."""
    found = []
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.rpartition("-")[2]
        if step.isdigit() and folder.is_dir() and (is_complete(folder) or not whole):
            found.append((int(step), folder))
    return [folder for _, folder in sorted(found)]


def layout_of(checkpoint: str | Path) -> str | None:
    """How the optimizer of a checkpoint is stored, by its files: one of `LAYOUTS`, or `None` where there is none."""
    folder = Path(checkpoint)
    if any(folder.glob("global_step*/*zero_pp_rank_*_model_states.pt")):
        return "ZeRO-3"
    if any(folder.glob("global_step*/*optim_states.pt")):
        return "ZeRO-1 or ZeRO-2"
    if (folder / "optimizer.bin").is_file() or (folder / "optimizer_0").is_dir():
        return "FSDP"
    return "plain" if (folder / "optimizer.pt").is_file() else None


def check_layout(checkpoint: str | Path, *, here: str, processes: int) -> None:
    """Refuses a checkpoint whose optimizer this run cannot read, which transformers would leave out or misread.

    Args:
        here (`str`):
            The layout of this run, one of `LAYOUTS`.
        processes (`int`):
            Of this run.

    Raises:
        ValueError: the layouts differ, or those of DeepSpeed are of other numbers of processes.
    """
    there = layout_of(checkpoint)
    ways = f"or start anew from its weights, with {str(checkpoint)!r} as the model."
    if there is not None and there != here:
        raise ValueError(
            f"{checkpoint} holds the optimizer of a run {LAYOUTS[there]}, which a run {LAYOUTS[here]} cannot read: "
            f"launch as it was launched (accelerate launch --config_file …), {ways}"
        )
    if there is None and here.startswith("ZeRO"):  # elsewhere that is said, and training goes on
        raise ValueError(
            f"{checkpoint} holds no optimizer (save_only_model=True?), without which a run {LAYOUTS[here]} cannot "
            f"resume: take another checkpoint, {ways}"
        )
    if there in ("ZeRO-3", "ZeRO-1 or ZeRO-2"):
        parts = {path.name for path in Path(checkpoint).glob("global_step*/*optim_states.pt")}
        if len(parts) != processes:
            raise ValueError(
                f"{checkpoint} holds the optimizer of {len(parts)} DeepSpeed processes, and this run has {processes}: "
                f"launch {len(parts)}, {ways}"
            )


def missing_from(checkpoint: str | Path, *, here: str, rank: int, processes: int) -> dict[str, str]:
    """Files that a process would look for in a checkpoint and not find → what becomes of the run without them."""
    wanted = {f"rng_state_{rank}.pth" if processes > 1 else "rng_state.pth": "random numbers are others"}
    if here == "plain":
        wanted["optimizer.pt"] = "the optimizer's moments begin anew"
    if here in ("plain", "FSDP"):
        wanted["scheduler.pt"] = "the learning rate begins anew"
    return {name: what for name, what in wanted.items() if not (Path(checkpoint) / name).is_file()}
