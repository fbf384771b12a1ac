"""Pushes while a run is under way, and at its end."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from ..signals import wait
from .push import PushError, interrupted, open_repo, push, retry_command


logger = logging.getLogger(__name__)


class PushCallback(TrainerCallback):
    """Pushes the model of every checkpoint in the background, one push at a time, and the whole result at the end.

    A push that fails on the way is a warning, and the next checkpoint is pushed anew; a checkpoint that is saved during
    a push is left out. Checkpoints themselves, with their optimizer, stay on disk.

    Args:
        repo_id (`str`):
            `user/name`, or `name` for the token's own user.
        every_save (`bool`, *optional*, defaults to `True`):
            Whether checkpoints are pushed, or the result alone.
        private, revision, token, endpoint, script (*optional*):
            As for [`push`].
    """

    def __init__(
        self,
        repo_id: str,
        *,
        every_save: bool = True,
        private: bool | None = None,
        revision: str | None = None,
        **options: str | None,
    ) -> None:
        self.repo_id, self.every_save = repo_id, every_save
        self._options = {"private": private, "revision": revision, **{k: v for k, v in options.items() if v}}
        self._ended = threading.Event()  # the last push of a checkpoint
        self._ended.set()

    @classmethod
    def from_arguments(cls, args: TrainingArguments, *, script: str | None = None) -> "PushCallback | None":
        """Takes `push_to_hub` and the `hub_` flags over from the trainer; `None` where nothing is to be pushed.

        To be called before the trainer is built, which would push `training_args.bin` with the token in it, keep quiet
        about failures on the way, and fill a public repository that was to be private. Opens the repository.

        Raises:
            ValueError: a `hub_strategy` that pushes optimizers, a bad name, or a public repository that was to be
                private.
            PushError: the Hub could not be reached or said no.
        """
        if not args.push_to_hub:
            return None
        if args.hub_strategy not in (HubStrategy.END, HubStrategy.EVERY_SAVE):
            raise ValueError(
                f"hub_strategy={args.hub_strategy.value!r}: checkpoints with their optimizer stay on disk. Set "
                "--hub_strategy every_save for the model of each checkpoint, or end."
            )
        args.push_to_hub = False
        args.hub_model_id = args.hub_model_id or Path(args.output_dir).absolute().name
        private, token = args.hub_private_repo, args.hub_token
        if args.process_index == 0:
            args.hub_model_id = open_repo(args.hub_model_id, private=private, token=token)
        every_save = args.hub_strategy == HubStrategy.EVERY_SAVE
        options = {"private": private, "revision": args.hub_revision, "token": token, "script": script}
        return cls(args.hub_model_id, every_save=every_save, **options)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        if not (self.every_save and state.is_world_process_zero):
            return
        if self.under_way:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._ended.clear()
        # a daemon, for a run that is stopped must not wait for the Hub
        threading.Thread(target=self._push_checkpoint, args=(folder, state.global_step), daemon=True).start()

    def finish(self, folder: str | Path) -> str:
        """Pushes the result, after the push that may be under way. On the main process. Raises what [`push`] does."""
        try:
            self.wait()
        except KeyboardInterrupt:
            options = {name: value for name, value in self._options.items() if name != "token"}
            raise interrupted(folder, retry_command(folder, self.repo_id, **options)) from None
        return push(folder, self.repo_id, **self._options)

    @property
    def under_way(self) -> bool:
        """Whether a push is. A process that ends meanwhile waits for it: see [`without_waiting`]."""
        return not self._ended.is_set()

    def wait(self) -> None:
        """Until the push under way has ended."""
        wait(self._ended)

    def _push_checkpoint(self, folder: Path, step: int) -> None:
        try:
            push(folder, self.repo_id, commit_message=f"Step {step}", **self._options)
        except (PushError, ValueError, OSError) as error:  # also of a checkpoint that save_total_limit took away
            logger.warning("training goes on, but step %d is not on the Hub: %s", step, error)
        finally:
            self._ended.set()


@contextlib.contextmanager
def without_waiting(pusher: PushCallback | None) -> Iterator[None]:
    """A script that exits early within it (`SystemExit`) does not wait for a push under way, whose threads Python would
    keep the process for."""
    try:
        yield
    except SystemExit as end:
        if pusher is not None and pusher.under_way:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
