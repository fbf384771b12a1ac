"""The output folder of a run: one run at a time, with its identity and its history of starts and resumes."""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger
from filelock import FileLock, Timeout

from ..config import CreditConfig, defaults
from ..config.algorithm import class_of, settings_of
from ..config.knobs import is_default
from ..support.errors import check_output_dir, choose
from ..support.files import refuse_link, short_path, write_atomically
from ..support.functions import is_custom_function, short_name
from .checkpoints import RUN_FILE, VERSION, checkpoint_step, checkpoints_of, read_run
from .identity import differences, in_words, modules_now


logger = get_logger(__name__)

LOCK_FILE = ".credit_run.lock"
_RESULTS = ("*.safetensors", "credit_plot.png", "reward_curve.png")


class RunFolder:
    """The `output_dir` of a run, on the main process.

    `credit_run.json` there holds the run's identity and its starts (`lives` in the file): the optimizer step of each
    start or resume (`from`), its id, and what changed since the one before (`changed`). `task` says what a run of the
    command line trains on, and `code` what its functions need of their files ([`~trl_credit.runs.identity.codes_of`]);
    paths are those of this machine, and no push sends the file. `reward` has the names of another run's rewards, if
    another process finds all of them. `trainer` is the name of a trainer class of the user. `credit` has the name of a
    custom function or class, its settings, and whether it is not the preset's.

    Args:
        config ([`CreditConfig`]):
            With `output_dir`, `overwrite_output_dir` and `allow_changed`.
    """

    def __init__(self, config: CreditConfig) -> None:
        self._config, self.path = config, Path(config.output_dir)
        self.record: dict[str, Any] | None = None
        self._lock: FileLock | None = None

    def add_change(self, name: str, before: Any, after: Any) -> None:
        """Adds a setting that changes at this resume and is no part of the identity. Main process only."""
        if self.record is not None:
            self.record["lives"][-1].setdefault("changed", {})[name] = [before, after]
            self.write_record(self.path)

    def claim(self, identity: dict[str, Any], resume: str | None, **more: Any) -> None:
        """Reserves the folder for a new run, or for one that resumes from a checkpoint.

        Args:
            identity (`dict`):
                See [`~trl_credit.runs.identity.identity`].
            resume (`str` or `None`):
                The checkpoint.
            more:
                `task`, `code`, `reward` and `trainer` of the record, in JSON types; `None` is left out.

        Raises:
            ValueError: another run is training here or has left its results, the checkpoint belongs to another run, or
                a setting has no effect. The message names the differences and the fix. The folder is then unchanged.
        """
        checkpoint = None if resume is None else Path(resume)
        # the folder that the checkpoint lies in, and the one that a link to it lies in
        folders = () if checkpoint is None else (checkpoint.resolve().parent, checkpoint.parent.resolve())
        resumes_here = self.path.resolve() in folders
        if self._config.overwrite_output_dir and resumes_here:
            raise ValueError("overwrite_output_dir=True would remove what resume_from_checkpoint reads: leave one out")
        if self._config.allow_changed and checkpoint is None:
            raise ValueError("allow_changed needs a resume_from_checkpoint, and there is none: leave it out")
        self._take_lock()
        for path in filter(Path.is_file, self.path.glob(".*.partial")):  # of processes that were killed
            path.unlink()
        try:
            starts = [{"from": 0}] if checkpoint is None else self._resumed(identity, checkpoint)
            if not resumes_here:
                self._make_room(identity)
            starts[-1]["id"] = secrets.token_hex(8)
            more["credit"] = self._own_credit()
            self.record = {"version": VERSION, "identity": identity, "lives": starts}
            self.record |= {name: value for name, value in more.items() if value is not None}
            self.write_record(self.path)
        except BaseException:
            self.release()
            raise

    def _own_credit(self) -> dict[str, Any] | None:
        """What describes a custom credit, of which the identity has the digest alone."""
        if not is_custom_function(credit := self._config.credit):
            return None
        names = [field.name for field in settings_of(class_of(credit))]
        return {"name": short_name(credit), "settings": names, "is_own": not is_default(self._config, "credit")}

    def add_modules(self, modules: dict[str, str]) -> None:
        """Adds helper modules that were loaded during the run to the identity. Those that it has stay as they were."""
        if self.record is not None:
            self.record["identity"]["modules"] = modules | self.record["identity"]["modules"]

    def write_record(self, folder: str | Path) -> None:
        """Writes the identity and the starts of the run into a folder that it saves to."""
        if self.record is not None and Path(folder).is_dir():
            write_atomically(Path(folder) / RUN_FILE, json.dumps(self.record, indent=1, ensure_ascii=False))

    def release(self) -> None:
        """Makes the folder free for other runs."""
        if self._lock is not None:
            self._lock.release(force=True)  # also after two claims

    def _take_lock(self) -> None:
        check_output_dir(short_path(self.path))
        self.path.mkdir(parents=True, exist_ok=True)
        for path in self.path.glob("*.*"):  # transformers would write the model through a link
            if not path.is_dir():
                refuse_link(path)
        self._lock = self._lock or FileLock(self.path / LOCK_FILE, timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            what = f"another process is training in output_dir={str(short_path(self.path))!r}"
            raise ValueError(f"{what}: wait until it ends, or choose another output_dir.") from None
        except NotImplementedError:  # a file system without locks
            logger.warning("%s has no file locks: a second run in this folder cannot be detected", self.path)

    def _make_room(self, identity: dict[str, Any]) -> None:
        checkpoints = checkpoints_of(self.path)
        if self._config.overwrite_output_dir:
            for checkpoint in checkpoints:
                checkpoint.unlink() if checkpoint.is_symlink() else shutil.rmtree(checkpoint)
            return
        record = read_run(self.path)
        if not checkpoints and (record is None or not any(any(self.path.glob(pattern)) for pattern in _RESULTS)):
            return
        changed = "no identity to compare with" if record is None else in_words(self._changed(record, identity))
        if changed:
            what = f"output_dir={str(short_path(self.path))!r} holds the results of another run ({changed})"
            fix = "choose another, set resume_from_checkpoint=True, or overwrite_output_dir=True (removes checkpoints)"
            raise ValueError(f"{what}: {fix}.")
        logger.warning("%s holds this run, which is replaced (resume_from_checkpoint continues it)", self.path)

    def _resumed(self, identity: dict[str, Any], checkpoint: Path) -> list[dict[str, Any]]:
        step, record, allowed = checkpoint_step(checkpoint), read_run(checkpoint), self._config.allow_changed or []
        if record is None:
            logger.warning("%s holds no identity of its run (plain TRL?): its settings may differ", checkpoint)
            return [{"from": step}]
        if unknown := [name for name in allowed if name not in identity and name not in record["identity"]]:
            fix = choose(unknown[0], identity)
            raise ValueError(f"allow_changed={unknown[0]!r} is no part of a run's identity{fix}")
        changed = self._changed(record, identity)
        as_model = "start a new run with the checkpoint as the model"
        if refused := {name: pair for name, pair in changed.items() if name not in allowed}:
            what = f"{checkpoint} was written by another run, which differs from this one ({in_words(refused)})"
            raise ValueError(f"{what}: use its settings, {as_model}, or set allow_changed={json.dumps([*refused])}.")
        # settings that the optimizer's state brings back
        if restored := [x for x in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon") if x in changed]:
            what = f"allow_changed {' '.join(restored)}: the state of the optimizer in {checkpoint} brings its own back"
            raise ValueError(f"{what}: use its settings, or {as_model}.")
        return [*record["lives"], {"from": step} | ({"changed": changed} if changed else {})]

    def _changed(self, record: dict[str, Any], identity: dict[str, Any]) -> dict[str, list[Any]]:
        recorded = {"modules": {}} | record["identity"]
        here = identity | {"modules": modules_now(recorded["modules"], loaded=identity["modules"])}
        return differences(recorded, here, defaults=defaults(type(self._config)))
