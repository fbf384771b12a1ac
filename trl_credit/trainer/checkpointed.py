"""A trainer whose checkpoints say whose they are, are taken where nothing is lost, and are read with all they hold."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from .borders import Borders
from .checkpoints import (
    check_layout,
    checkpoints_of,
    is_complete,
    last_checkpoint,
    missing_from,
    read_found,
    read_position,
    read_state,
    unmark,
    write_state,
)
from .engine import RolloutEngine
from .identity import defaults_of, functions_of, identity
from .old_defaults import changed_since_0_1
from .refusals import check_amount
from .run_folder import RunFolder, lives_in_words


logger = get_logger(__name__)


ENTROPY_FILE = "entropy_ctrl_state.json"


class _AlreadyDone(Exception):
    """Leaves the training loop of a run that was at its end before, with everything loaded."""


class CheckpointedTrainer(RolloutEngine):
    """[`RolloutEngine`] that keeps state of its own in checkpoints, and who the run is. Trains as TRL does.

    Checkpoints are taken between two generation batches, see [`Borders`].
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._order: Any = None  # in which the rows of the data set come
        self._resumes_inside = False  # of a generation batch, of which TRL generates the rest anew
        self._is_claimed = False
        self._claimed_for: str | None = None  # the checkpoint
        self.was_done = False  # whether the run that was resumed last was at its end before
        super().__init__(*args, **kwargs)
        self._borders = Borders(self.args)
        self._folder = RunFolder(self.args.output_dir)
        # as they are before training: functions may note what they see, and DeepSpeed casts weights
        self.functions = functions_of(self)
        self.dtype_of_weights = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        if self._borders.rounded:
            logger.warning(
                "checkpoints are taken between generation batches of %d optimizer steps: %s",
                self._borders.updates,
                self._borders.rounded,
            )

    # To be defined

    def state_parts(self) -> dict[str, str]:
        """Parts of the state that a run keeps → the setting that has each of them kept."""
        raise NotImplementedError

    def save_parts(self, folder: Path) -> dict[str, dict[str, Any]]:
        """What is kept of them, on the main process; large parts as files of their own in `folder`."""
        raise NotImplementedError

    def load_parts(self, folder: Path, parts: dict[str, dict[str, Any]]) -> None:
        """Restores what `save_parts` returned."""
        raise NotImplementedError

    def found(self) -> dict[str, Any]:
        """What the run has found out about its model: JSON types, the same on all processes."""
        return {}

    def load_found(self, found: dict[str, Any]) -> None:
        """Takes what `found` returned when the checkpoint was written, which may be of an older release."""

    # A run and its folder

    def claim_output_dir(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Takes `output_dir` for this run: called by [`train`], or before, by what writes there earlier. Collective.

        Raises:
            ValueError: another run is at work in it, or has left its results there; or the checkpoint is of another
                run, or cannot be read by this one.
        """
        checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._is_claimed and checkpoint == self._claimed_for:
            return
        self._is_claimed = False
        self._together(lambda: self._claim(checkpoint))
        self._is_claimed, self._claimed_for = True, checkpoint

    def release_output_dir(self) -> None:
        """Lets others train in `output_dir`."""
        self._is_claimed = False
        self._folder.release()

    def changes_of_run(self) -> list[str]:
        """What was changed on purpose between the lives of this run, a sentence for each time (main process)."""
        return lives_in_words(self._folder.record)

    def _claim(self, checkpoint: str | None) -> None:
        args = self.args
        if args.overwrite_output_dir and checkpoint and self._folder.holds(checkpoint):
            raise ValueError("overwrite_output_dir=True would remove what resume_from_checkpoint reads: leave one out")
        if args.allow_changed and not checkpoint:
            raise ValueError("allow_changed says what may differ from the checkpoint to resume from: there is none")
        self._folder.claim(
            identity(self),
            resume=checkpoint,
            overwrite=args.overwrite_output_dir,
            allowed=args.allow_changed or [],
            defaults=defaults_of(args),
            since_0_1=changed_since_0_1(args),
        )

    def _together(self, check: Callable[[], Any]) -> Any:
        """What `check` returns or raises on the main process, on all of them."""
        outcome: list[Any] = [None, None]
        failed: Exception | None = None
        if self.accelerator.is_main_process:
            try:
                outcome[0] = check()
            except Exception as error:  # whatever it is, the others must not wait for ever
                failed = error
                outcome[1] = error if type(error) in (ValueError, OSError) else RuntimeError(f"on process 0: {error}")
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise failed or outcome[1]
        return outcome[0]

    # Training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`, but that `resume_from_checkpoint=True` is the last checkpoint of the run that was started
        last in `output_dir`, and that a run which is at its end already is left as it is.

        Raises:
            ValueError: too little data for a single step; another run's folder or checkpoint (what differs is named);
                no checkpoint to resume from, or one that this run cannot read whole.
        """
        check_amount(self.args, self.train_dataset)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._together(lambda: find_last(self.args.output_dir))
        resume = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if resume is not None:
            self._together(lambda: self._check_checkpoint(resume))  # before anything is loaded
        claimed_before, self.was_done = self._is_claimed, False
        self.claim_output_dir(resume)
        # what a train() before this one left when it ended inside of a batch
        self._step, self._buffered_inputs, self._resumes_inside = 0, None, False
        self._step_sums.clear()
        self._borders.begin()
        try:
            output = super().train(resume, *args, **kwargs)
            if resume is not None and self._initial_global_step >= self.state.max_steps:
                self._say_done()  # at the end of an epoch, where no step is begun
        except _AlreadyDone:
            output = self._left_as_it_is()
        except ValueError as error:
            if "not contain any data" in str(error):  # Accelerate, of a stream without a length
                raise self._too_short() from error
            raise
        finally:
            if not claimed_before:
                self.release_output_dir()
        if self.state.global_step == self._step == 0:  # where training was stopped inside of a step, there was one
            raise self._too_short()
        return output

    def _too_short(self) -> ValueError:
        prompts = self.args.generation_batch_size // self.num_generations
        return ValueError(
            f"the rows ended before one generation batch, of {prompts} prompts, was full: give more, or lower "
            "per_device_train_batch_size or steps_per_generation."
        )

    def _check_checkpoint(self, checkpoint: str) -> None:
        if not is_complete(checkpoint):
            raise ValueError(f"there is no whole checkpoint in resume_from_checkpoint={checkpoint!r}.")
        check_layout(checkpoint, here=self.layout, processes=self.num_processes)
        read_state(checkpoint, wanted=self.state_parts())

    @property
    def layout(self) -> str:
        """How optimizers are stored in this run: a key of [`~trl_credit.trainer.checkpoints.LAYOUTS`]."""
        if self.is_deepspeed_enabled:
            return "ZeRO-3" if self.accelerator.state.deepspeed_plugin.zero_stage == 3 else "ZeRO-1 or ZeRO-2"
        return "FSDP" if self.is_fsdp_enabled else "plain"

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step >= self.state.max_steps > 0:
            raise _AlreadyDone
        return super().get_batch_samples(*args, **kwargs)

    def _say_done(self) -> None:
        self.was_done = True
        logger.warning(
            "already at step %d of %d: nothing was trained. For more, raise max_steps (num_train_epochs)",
            self.state.global_step,
            self.state.max_steps,
        )

    def _left_as_it_is(self) -> TrainOutput:
        self._say_done()
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self.is_in_train = False
        return TrainOutput(self.state.global_step, 0.0, {})

    # Checkpoints

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._borders.after_update(self._step, control=self.control)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:  # a checkpoint of an earlier life may be there, which says that it is whole
            unmark(Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if _internal_call and self.args.should_save:
            self._folder.keep_in(output_dir or self.args.output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # with the optimizer rather than after the checkpoint: older checkpoints are deleted only once this is written
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            position = self._borders.done, self._borders.every
            write_state(output_dir, self.save_parts(Path(output_dir)), position=position, found=self.found())

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # what rank 0 writes next says that the checkpoint is complete
        self.accelerator.wait_for_everyone()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # weights that are another one's are in no checkpoint, and are there all the same
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._order = super()._get_train_sampler(*args, **kwargs)
        return self._order

    def _wind_order(self, epochs: int) -> None:
        """Draws the orders of epochs that are over: TRL's sampler would begin with that of the first one again."""
        generator = getattr(self._order, "generator", None)
        if generator is not None and not hasattr(self._order, "set_epoch"):  # to which transformers would tell it
            for _ in range(epochs):
                torch.randperm(self._order.num_samples, generator=generator)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        parts = read_state(checkpoint, wanted=self.state_parts())
        self.load_parts(Path(checkpoint), parts)
        self.load_found(read_found(checkpoint))
        self._say_what_is_missing(checkpoint)
        self._wind_order(int(self.state.epoch or 0))
        window = self.args.gradient_accumulation_steps
        # where an uninterrupted run would be in its generation batch
        self._step = self._borders.position(self.state, window, read_position(checkpoint))
        self._borders.done, self._buffered_inputs = self._step, None
        self._resumes_inside = self._step > 0
        if self._resumes_inside:
            logger.warning(
                "%s was taken inside a generation batch, the rest of which is generated anew: this run is not to the "
                "last bit what it would have been",
                checkpoint,
            )

    def _say_what_is_missing(self, checkpoint: str) -> None:
        # every process for itself: random numbers are its own, and folders may be too
        missing = missing_from(checkpoint, here=self.layout, rank=self.rank, processes=self.num_processes)
        adapts = getattr(self, "use_adaptive_entropy", False)  # which older TRL has not
        if adapts and not (Path(checkpoint) / ENTROPY_FILE).is_file():  # written after all that makes it whole
            missing[ENTROPY_FILE] = "the coefficient of the entropy begins anew"
        if self.args.sync_ref_model and self.state.global_step >= self.args.ref_model_sync_steps:
            missing["reference model"] = "TRL does not keep what sync_ref_model made of it, so it begins anew"
        for name, what in missing.items():
            message = "%s has no %s: %s, and this run is not to the last bit what it would have been"
            logger.warning(message, checkpoint, name, what, main_process_only="rng" not in name)


def find_last(output_dir: str | os.PathLike) -> str:
    """The checkpoint that `resume_from_checkpoint=True` stands for.

    Raises:
        ValueError: there is none.
    """
    if (found := last_checkpoint(output_dir)) is not None:
        return str(found)
    others = [path.name for path in checkpoints_of(output_dir, whole=True)]
    hint = f" Those there ({', '.join(others)}) are of a run before it: name one to go on from it." if others else ""
    fix = " Name the output_dir of the run to go on with, or leave out resume_from_checkpoint."
    raise ValueError(
        f"there is no complete checkpoint in {str(output_dir)!r} of the run that was started last there.{hint or fix}"
    )
