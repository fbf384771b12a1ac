"""Reads and writes what a run adds to its checkpoints, and finds the checkpoint to resume from."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

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


class Stateful(Protocol):
    """A part of a run whose state is kept in checkpoints.

    Attributes:
        name: Its key in the checkpoint.
        setting: The setting that it belongs to, for messages: "difficulty='history'".
    """

    name: str
    setting: str

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """The state as JSON types, on the main process. Large parts go into separate files in `folder`."""

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores the state, on all processes.

        Raises:
            ValueError: the state does not fit the part.
        """


@dataclass
class ObjectState:
    """A [`Stateful`] part that knows nothing of checkpoints: HA-DW's belief, an algorithm.

    Attributes:
        name, setting: See [`Stateful`].
        part: Has `state_dict()` and `load_state_dict(state)`.

    Raises:
        ValueError: the state holds what JSON lacks.
    """

    name: str
    setting: str
    part: Any

    def __post_init__(self) -> None:
        try:
            json.dumps(self.part.state_dict())
        except (TypeError, ValueError) as error:  # now, and not at the first checkpoint
            raise ValueError(f"{self.setting}: its state_dict() must return JSON types: {error}.") from error

    def state_dict(self, folder: Path) -> dict[str, Any]:
        return self.part.state_dict()

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        self.part.load_state_dict(state)


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
    path, fix = Path(folder) / STATE_FILE, "resume with the settings that wrote it, or start a new run from its model"
    state = {"parts": {}, "position": None, "found": {}} | (_read(path, fix="resume from another checkpoint") or {})
    if missing := [needed[name] for name in sorted(needed.keys() - state["parts"].keys())]:
        raise ValueError(f"{path} holds no state for {', '.join(missing)}: {fix}.")
    if unknown := sorted(state["parts"].keys() - needed.keys()):
        raise ValueError(f"{path} holds state that this run would lose ({', '.join(unknown)}): {fix}.")
    return state


def read_run(folder: str | Path) -> dict[str, Any] | None:
    """What [`~trl_credit.runs.folder.RunFolder`] keeps in a folder; `None` without a file.

    Raises:
        ValueError: the file is damaged, or of a newer version.
    """
    return _read(Path(folder) / RUN_FILE, fix="remove it if all checkpoints here are of one run, or use another folder")


def _read(path: Path, *, fix: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = read_json(path)
        if int(content["version"]) > VERSION:
            raise ValueError(f"version {content['version']} is of a newer trl_credit: upgrade it")
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is damaged or was not written by trl_credit ({one_line(error)}): {fix}.") from error
    return content


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written to its end: its last file can be read."""
    try:
        return "global_step" in _trainer_state(checkpoint)
    except (OSError, ValueError, TypeError):
        return False


def mark_incomplete(checkpoint: Path) -> None:
    """Removes the last file of a checkpoint that will be overwritten, or the checkpoint itself if it is a link."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
    (checkpoint / _TRAINER_STATE).unlink(missing_ok=True)


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Optimizer steps before a complete checkpoint; 0 for `None`."""
    return _trainer_state(checkpoint)["global_step"] if checkpoint else 0


def planned_steps(checkpoint: str | Path) -> int:
    """Optimizer steps that the run of a complete checkpoint was to make."""
    return _trainer_state(checkpoint).get("max_steps", 0)


def _trainer_state(checkpoint: str | Path) -> dict[str, int]:
    return read_json(Path(checkpoint) / _TRAINER_STATE)


def checkpoints_of(output_dir: str | Path, *, complete: bool = False) -> list[Path]:
    """The checkpoints in a folder by step; with `complete`, without unfinished ones."""
    folders = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    steps = {int(step): path for path in folders if (step := path.name.rpartition("-")[2]).isdigit()}
    return [steps[step] for step in sorted(steps) if not complete or is_complete(steps[step])]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of the run that was started last in a folder, or `None`.

    Skips checkpoints of other runs, and those that this run abandoned when it resumed from an earlier step. Without a
    record of the run (plain TRL), all checkpoints count as those of one run.
    """
    record, checkpoints = read_run(output_dir), checkpoints_of(output_dir, complete=True)
    return next((c for c in reversed(checkpoints) if record is None or _belongs_to(record["lives"], c)), None)


def find_last(output_dir: str | Path) -> str:
    """The checkpoint that `resume_from_checkpoint=True` means. Raises `ValueError` if there is none."""
    if (last := last_checkpoint(output_dir)) is not None:
        return str(last)
    others = ", ".join(path.name for path in checkpoints_of(output_dir, complete=True)) or "none"
    what = f"there is no complete checkpoint in {str(short_path(output_dir))!r} of the run that was started last there"
    raise ValueError(f"{what} (of other runs: {others}): name one, another output_dir, or no resume_from_checkpoint.")


def _belongs_to(starts: list[dict[str, Any]], checkpoint: Path) -> bool:
    """Whether the run with these starts wrote a checkpoint, and has not abandoned it since."""
    try:
        other, step = read_run(checkpoint), checkpoint_step(checkpoint)
    except FileNotFoundError:  # its run is still training, and has just removed it
        return False
    if other is None:
        return step <= starts[0]["from"]  # the run was resumed from a checkpoint of plain TRL
    ids, own_id = [start["id"] for start in starts], other["lives"][-1]["id"]
    return own_id in ids and all(step <= start["from"] for start in starts[ids.index(own_id) + 1 :][:1])


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
        last, fix = last_checkpoint(output_dir), "go on with resume_from_checkpoint=True"
        kept = f"the last complete checkpoint is {short_path(last)}" if last else "there is no complete checkpoint"
        what = f"disk full in {str(short_path(output_dir))!r}: {kept}; make room, and {fix if last else 'train again'}"
        raise OSError(errno.ENOSPC, what) from None


def check_layout(checkpoint: str | Path, *, here: str) -> None:
    """Refuses a checkpoint whose optimizer this run cannot read, which transformers would skip or misread.

    Args:
        here (`str`):
            Layout of this run, a key of `LAYOUTS`.

    Raises:
        ValueError: the layouts differ.
    """
    there = next((name for name, files in LAYOUTS.items() if any(Path(checkpoint).glob(files))), here)
    if there != here:
        what = f"{checkpoint} holds the optimizer of layout {there}, and this run has layout {here}"
        raise ValueError(f"{what}: launch as that run, or start a new one with the checkpoint as the model.")
