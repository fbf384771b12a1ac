"""One run in one folder: who it is, what it goes on from, and nobody else at the same time."""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger
from filelock import FileLock, Timeout

from ..files import write_whole
from ..mistakes import choose
from .checkpoints import RUN_FILE, RUN_VERSION, checkpoint_step, checkpoints_of, read_run
from .identity import differences, in_words


logger = get_logger(__name__)

LOCK_FILE = ".credit_run.lock"
_RESULTS = ("*.safetensors", "credit_plot.png", "reward_curve.png")


class RunFolder:
    """The `output_dir` of a run, on the main process.

    What it keeps in `credit_run.json`: the run's identity, and its lives (`from`: the optimizer step at which a life
    began; `changed`: what differs from the life before, by permission).

    Args:
        path (`str`):
            The folder; made when the run claims it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.record: dict[str, Any] | None = None
        self._lock: FileLock | None = None

    def claim(
        self,
        identity: dict[str, Any],
        *,
        resume: str | None,
        overwrite: bool,
        allowed: list[str],
        defaults: dict[str, Any],
        since_0_1: dict[str, list[Any]],
    ) -> None:
        """Takes the folder for a life of a run: a new one, or one that resumes from a checkpoint.

        Args:
            identity (`dict`):
                See [`~trl_credit.trainer.identity.identity`].
            resume (`str` or `None`):
                The checkpoint.
            overwrite (`bool`):
                Whether a new run may take the folder of another, of which the checkpoints are removed.
            allowed (`list[str]`):
                Names of the identity that may have changed since the checkpoint.
            defaults (`dict`):
                Of fields, for those that another release did not have.
            since_0_1 (`dict`):
                What the run has by defaults that trl_credit 0.1 did not have, see
                [`~trl_credit.trainer.old_defaults.changed_since_0_1`]: said where the checkpoint may be one of 0.1.

        Raises:
            ValueError: another run is at work here, or has left its results; or the checkpoint is another run's. The
                message says what differs and what to do. Nothing has been changed then.
        """
        self._take_lock()
        try:
            lives = [{"from": 0}]
            if resume is not None:
                lives = self._resumed(identity, Path(resume), allowed=allowed, defaults=defaults, since_0_1=since_0_1)
            if resume is None or not self.holds(resume):
                self._make_room(identity, overwrite=overwrite, defaults=defaults)
            lives[-1]["id"] = secrets.token_hex(8)
            self.record = {"version": RUN_VERSION, "identity": identity, "lives": lives}
            write_whole(self.path / RUN_FILE, json.dumps(self.record, indent=1, ensure_ascii=False))
        except BaseException:
            self.release()
            raise

    def keep_in(self, checkpoint: str | Path) -> None:
        """Writes who the run is into a folder that it saves to."""
        if self.record is not None and Path(checkpoint).is_dir():
            write_whole(Path(checkpoint) / RUN_FILE, json.dumps(self.record, indent=1, ensure_ascii=False))

    def release(self) -> None:
        """Lets others claim the folder."""
        if self._lock is not None:
            self._lock.release(force=True)  # also one that was claimed twice

    def _take_lock(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock or FileLock(self.path / LOCK_FILE, timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise ValueError(
                f"another process is training in output_dir={str(self.path)!r}: wait for its end, or choose another "
                "output_dir."
            ) from None
        except NotImplementedError:  # a file system without locks
            logger.warning("%s has no locks: nothing keeps a second run out of it", self.path)

    def holds(self, checkpoint: str | Path) -> bool:
        """Whether a checkpoint is one of this folder, however it is written."""
        return Path(checkpoint).resolve().parent == self.path.resolve()

    def _make_room(self, identity: dict[str, Any], *, overwrite: bool, defaults: dict[str, Any]) -> None:
        checkpoints = checkpoints_of(self.path)
        if overwrite:
            for checkpoint in checkpoints:
                shutil.rmtree(checkpoint)
            return
        record = read_run(self.path)
        if not checkpoints and (record is None or not self._has_results()):
            return
        what = f"output_dir={str(self.path)!r} holds the results of another run"
        ways = (
            "choose another output_dir, overwrite it with --overwrite_output_dir true (which removes its checkpoints), "
            "or go on with it by --resume_from_checkpoint true."
        )
        if record is None:
            raise ValueError(f"{what}, {checkpoints[-1].name}, which keeps no identity to compare with: {ways}")
        if changed := differences(record["identity"], identity, defaults=defaults):
            raise ValueError(f"{what}, which differs from this one in {in_words(changed)}: {ways}")

    def _resumed(
        self,
        identity: dict[str, Any],
        checkpoint: Path,
        *,
        allowed: list[str],
        defaults: dict[str, Any],
        since_0_1: dict[str, list[Any]],
    ) -> list[dict[str, Any]]:
        step, record = checkpoint_step(checkpoint), read_run(checkpoint)
        if record is None:
            logger.warning(
                "%s keeps no identity of its run (it was written by plain TRL, or by trl_credit 0.1): whether its "
                "algorithm, settings and data are those of this run is not known",
                checkpoint,
            )
            if since_0_1:
                logger.warning(
                    "defaults of this run that trl_credit 0.1 had otherwise: %s. If %s is of 0.1, and its run did not "
                    "set them, set the old ones to go on as before",
                    in_words(since_0_1),
                    checkpoint,
                )
            return [{"from": step}]
        for name in allowed:
            if name not in identity and name not in record["identity"]:
                raise ValueError(f"allow_changed={name!r} is no part of a run's identity{choose(name, identity)}")
        changed = differences(record["identity"], identity, defaults=defaults)
        if refused := {name: pair for name, pair in changed.items() if name not in allowed}:
            raise ValueError(
                f"{checkpoint} was written by another run, which differs from this one in {in_words(refused)}: take "
                "its settings, choose another output_dir and start anew, or, if the change is meant, add "
                f"--allow_changed {' '.join(refused)}."
            )
        life = {"from": step} | ({"changed": changed} if changed else {})
        return [*record["lives"], life]

    def _has_results(self) -> bool:
        return any(True for pattern in _RESULTS for _ in self.path.glob(pattern))


def lives_in_words(record: dict[str, Any] | None) -> list[str]:
    """What was changed on purpose in the course of a run, a sentence for each time."""
    lives = [] if record is None else record["lives"]
    return [f"From step {life['from']}: {in_words(life['changed'])}." for life in lives if life.get("changed")]
