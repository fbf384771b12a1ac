"""How a training run ends: what is kept, what is printed, and the exit code."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from traceback import extract_tb
from typing import Any

from transformers import TrainerCallback

from ..rewards.limits import LimitPassed
from ..runs.checkpoints import last_checkpoint
from ..settings.arguments import with_source
from ..support.errors import disk_full, fail
from ..support.files import short_path
from ..support.functions import FunctionRaised
from ..support.shown import shown
from ..support.signals import StopSignals, without_flag
from ..trainer import CreditTrainer


PACKAGE = Path(__file__).parents[1]


class GracefulExit(TrainerCallback, AbstractContextManager):
    """Context manager in which a run is trained and saved. It turns an early end into one line on standard error:
    Ctrl-C and SIGTERM (after writing plots and card), a full disk, and errors that the package raises on purpose.
    Other errors keep their traceback.

    Args:
        trainer ([`CreditTrainer`]):
            Not yet trained.
        stop ([`StopSignals`]):
            The open context that receives the signals.
        argv (`list[str]`):
            The command line, without the script.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, 1 for an error during training, 2 for one before the first
            step.
    """

    def __init__(self, trainer: CreditTrainer, *, stop: StopSignals, argv: list[str]) -> None:
        self.trainer, self.stop, self.argv = trainer, stop, argv
        self.folder = Path(trainer.args.output_dir)
        self.model_is_saved = False
        trainer.results.writes_at_end = False  # `save_results` writes them after the model
        trainer.callback_handler.callbacks.insert(0, self)  # the model is saved before another shows the last step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stop.number is not None:
            raise KeyboardInterrupt  # the first one was lost in a destructor or in a reward's `except:`
        if state.global_step >= state.max_steps and not args.load_best_model_at_end:
            self.save_model()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.results.steps_done:
            self.save_model()  # of a run that ended early, or of the best checkpoint

    def save_model(self) -> None:
        """Writes the model to the run's folder, once. Collective."""
        if not self.model_is_saved:
            self.trainer.save_model()
            self.model_is_saved = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self.trainer.release_output_dir()
        if error is None:
            self.trainer.accelerator.end_training()  # destroys the process group, as torch asks
        if error is None or isinstance(error, SystemExit):
            return
        for bar in [getattr(x, "training_bar", None) for x in self.trainer.callback_handler.callbacks]:
            if bar is not None:
                bar.close()
        if self.stop.number is not None or isinstance(error, KeyboardInterrupt):
            if self.trainer.accelerator.is_main_process:
                print(f"interrupted {self._after_interrupt()}", file=sys.stderr, flush=True)
            raise SystemExit(self.stop.code) from None
        if disk_full(error):
            left, command = self._left()
            fail(f"disk full in {str(short_path(self.folder))!r}: {left}; make room, and {command}", code=1)
        # raised by this package on purpose, and not because of another error
        is_ours = error.__cause__ is None and Path(extract_tb(error.__traceback__)[-1].filename).is_relative_to(PACKAGE)
        refused = is_ours and isinstance(error, (ValueError, TimeoutError, FloatingPointError))
        # transformers checks the optimizer and the schedule only when training starts
        early = self.trainer.results.begun_at is None and isinstance(error, (ValueError, OSError, TypeError))
        if refused or early or isinstance(error, (LimitPassed, FunctionRaised, ImportError)):
            fail(with_source(error, self.argv), code=1 if self.trainer.results.steps_done else 2)

    def _after_interrupt(self) -> str:
        """What an interrupted run leaves, and the command that goes on."""
        if not self.trainer.results.steps_done:
            return f"before the first step ({self.stop.cause}): nothing was written; the same command starts again"
        results = "no plots and no card"
        with shown(results):
            self.trainer.results.write()
            results = f"plots and card so far are in {short_path(self.folder)}"
        state, (left, command) = self.trainer.state, self._left()
        return f"at step {state.global_step} of {state.max_steps} ({self.stop.cause}): {left}; {results}; {command}"

    def _left(self) -> tuple[str, str]:
        """What is complete on the disk, and the command that goes on from there."""
        if self.model_is_saved:
            return "the model there is complete, and has no plots and no card", "start the next run"
        if (checkpoint := last_checkpoint(self.folder)) is None:
            return "no checkpoint yet", f"start again with: {self.stop.command(self.argv)}"
        argv = [*without_flag(self.argv, "resume_from_checkpoint"), "--resume_from_checkpoint", "true"]
        return f"the last checkpoint is {short_path(checkpoint)}", f"go on with: {self.stop.command(argv)}"
