"""Pushes during a run and at its end."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from ..support.signals import wait
from .push import PushError, Repository, interruptible, push


logger = logging.getLogger(__name__)


class PushCallback(TrainerCallback):
    """Pushes the model of every checkpoint in the background, one push at a time, and the whole result at the end.

    A push that fails during training is a warning, and the next checkpoint is pushed again; a checkpoint that is saved
    during a push is left out. Checkpoints themselves, with their optimizer, stay on disk.

    Args:
        repo ([`Repository`]):
            Where to.
        every_save (`bool`, *optional*, defaults to `True`):
            Whether checkpoints are pushed, or only the result.
    """

    def __init__(self, repo: Repository, *, every_save: bool = True) -> None:
        self.repo, self.every_save = repo, every_save
        self._ended = threading.Event()  # set while no checkpoint is being pushed
        self._ended.set()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> "PushCallback | None":
        """Takes `push_to_hub` and the `hub_` flags over from the trainer, and opens the repository. `None` if
        `push_to_hub` is not set.

        Call it before the trainer is built. The trainer would push `training_args.bin` with the token in it, hide
        failures during training, and fill a public repository in spite of `hub_private_repo`.

        Raises:
            ValueError: a `hub_strategy` that pushes optimizers, or a bad name.
            PushError: the Hub could not be reached or refused, or the repository is public with
                `hub_private_repo=True`.
        """
        if not args.push_to_hub:
            return None
        if args.hub_strategy not in (HubStrategy.END, HubStrategy.EVERY_SAVE):
            what = f"hub_strategy={args.hub_strategy.value!r} would push optimizers"
            raise ValueError(f"{what}: set --hub_strategy every_save for the model of each checkpoint, or end")
        args.push_to_hub = False
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        repo = Repository(name, private=args.hub_private_repo, revision=args.hub_revision, token=args.hub_token)
        if args.process_index == 0:
            repo = replace(repo, repo_id=repo.open())
        args.hub_model_id = repo.repo_id
        return cls(repo, every_save=args.hub_strategy == HubStrategy.EVERY_SAVE)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object) -> None:
        if not self.every_save or not state.is_world_process_zero or self.is_pushing:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._ended.clear()
        # a daemon, so that a run that is stopped does not wait for the Hub
        threading.Thread(target=self._push_checkpoint, args=(folder, state.global_step), daemon=True).start()

    def finish(self, folder: str | Path) -> str:
        """Pushes the result after the last push of a checkpoint. On the main process. Raises what [`push`] does."""
        with interruptible(folder, self.repo.retry_command(folder)):
            self.wait()
        return push(folder, self.repo)

    @property
    def is_pushing(self) -> bool:
        """Whether a checkpoint is being pushed. Python waits for such a push at its exit: see [`without_waiting`]."""
        return not self._ended.is_set()

    def wait(self) -> None:
        """Waits until no checkpoint is being pushed."""
        wait(self._ended)

    def _push_checkpoint(self, folder: Path, step: int) -> None:
        try:
            push(folder, self.repo, commit_message=f"Step {step}")
        except (PushError, ValueError, OSError) as error:  # save_total_limit may have removed the checkpoint
            logger.warning("training goes on, but step %d is not on the Hub: %s", step, error)
        finally:
            self._ended.set()


@contextlib.contextmanager
def without_waiting(pusher: PushCallback | None) -> Iterator[None]:
    """Lets a script that exits early (`SystemExit`) end during a push. Python would wait for the push's threads."""
    try:
        yield
    except SystemExit as end:
        if pusher is not None and pusher.is_pushing:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
