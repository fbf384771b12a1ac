"""How a run ends, in time or before: what is kept, what is said, and with which exit code."""

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .mistakes import disk_full, fail, one_line
from .report.results import Results
from .rewards.guard import RewardRaised
from .rewards.limits import LimitPassed
from .rewards.watchdog import WatchdogError
from .signals import StopSignals
from .trainer import CreditTrainer
from .trainer.checkpoints import finished_at, last_checkpoint


PACKAGE = Path(__file__).parent


class Ending(TrainerCallback):
    """Within it a run is trained and written. Whatever ends it before its time is said in one line: Ctrl-C and
    SIGTERM, after the plots and the card so far are written, a full disk, and what the package itself refuses. Other
    errors pass, with their traceback.

    Args:
        trainer ([`CreditTrainer`]):
            Not yet trained.
        stop ([`StopSignals`]):
            In which this is.
        argv (`list[str]`):
            The command line, without the script.
        in_words (`Callable`, *optional*):
            From an exception to what is said of it.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, 1 for an error in the course of the run, 2 for one before its
            first step.
    """

    def __init__(
        self,
        trainer: CreditTrainer,
        *,
        stop: StopSignals,
        argv: list[str],
        in_words: Callable[[BaseException], str] = one_line,
    ) -> None:
        self.trainer, self.stop, self.argv, self.in_words = trainer, stop, argv, in_words
        self.folder = Path(trainer.args.output_dir)
        self.model_is_saved = False
        self._first_step: int | None = None
        trainer.results.writes_at_end = False  # but after the model, and a full disk ends the run
        trainer.add_callback(self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._first_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.stop.number is not None:
            raise KeyboardInterrupt  # the first one got lost, as one does in a destructor or in a reward's `except:`

    def has_model(self) -> bool:
        """Whether the run's folder holds weights that are not older than the last checkpoint, as are those
        of a run that was trained to its end. Collective."""
        weights = [path.stat().st_mtime for path in self.folder.glob("*.safetensors")]
        checkpoint = last_checkpoint(self.folder)
        written = 0.0 if checkpoint is None else finished_at(checkpoint)
        found = [bool(weights) and min(weights) >= written]
        broadcast_object_list(found)  # other nodes need not have the folder
        return found[0]

    def save_model(self) -> None:
        """Writes the model to the run's folder, on all processes."""
        self.trainer.save_model()
        self.model_is_saved = True

    def write_results(self) -> Results:
        """Writes plots and card of the steps so far, on the main process. Raises what `trainer.results.write` does."""
        return self.trainer.results.write()

    @property
    def steps_done(self) -> int:
        """Optimizer steps of this process, without those before a resume."""
        return 0 if self._first_step is None else self.trainer.state.global_step - self._first_step

    def __enter__(self) -> "Ending":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.trainer.release_output_dir()
        if error is None:
            # as torch asks of a process that ends; of threads that it leaves see `let_threads_finish`
            self.trainer.accelerator.end_training()
        if error is None or isinstance(error, SystemExit):
            return
        self._close_bar()
        if self.stop.number is not None or isinstance(error, KeyboardInterrupt):
            if self.trainer.accelerator.is_main_process:
                print(f"interrupted {self._so_far()}", file=sys.stderr, flush=True)
            raise SystemExit(self.stop.code) from None
        if disk_full(error):
            fail(f"disk full in {str(self.folder)!r}: {self._safe()}", code=1)
        refused = isinstance(error, (ValueError, TimeoutError, FloatingPointError, WatchdogError)) and _is_ours(error)
        # which come from what a reward function did, and say so
        refused = refused or isinstance(error, (LimitPassed, RewardRaised))
        # before the first step transformers still finds what an optimizer or a schedule cannot be
        early = self._first_step is None and isinstance(error, (ValueError, OSError))
        if self._first_step is None and isinstance(error, TypeError) and "create_scheduler" in _functions(error):
            fail(self.in_words(ValueError(f"lr_scheduler_kwargs: {error}")), code=2)
        if refused or early or isinstance(error, ImportError):
            fail(self.in_words(error), code=1 if self.steps_done else 2)

    def _so_far(self) -> str:
        """What an interrupted run leaves, and how it goes on."""
        state, again = self.trainer.state, self.stop.command(self.argv)
        if not self.steps_done:
            return f"before the first step ({self.stop.cause}): nothing was written; the same command starts again"
        results = f"plots and card so far are in {self.folder}"
        try:
            self.write_results()
        except Exception as error:  # the checkpoint and the way on are to be said whatever the plots do
            results = f"no plots and no card ({'disk full' if disk_full(error) else one_line(error)})"
        at = f"at step {state.global_step} of {state.max_steps} ({self.stop.cause}): "
        if (checkpoint := last_checkpoint(self.folder)) is None:
            asked = f"save_steps is {self.trainer.args.save_steps:g}"
            return f"{at}no checkpoint yet ({asked}); {results}; start again with: {again}"
        return f"{at}the last checkpoint is {checkpoint}; {results}; go on with: {self._resuming()}"

    def _safe(self) -> str:
        """What a full disk has left whole."""
        if self.model_is_saved:
            return "the model there is whole, and has no plots and no card; make room before the next run"
        if (checkpoint := last_checkpoint(self.folder)) is None:
            return "there is no whole checkpoint; make room, and start again"
        return f"the last whole checkpoint is {checkpoint}; make room, and go on with: {self._resuming()}"

    def _resuming(self) -> str:
        """The command that goes on from the last checkpoint."""
        flag, words, skip = "--resume_from_checkpoint", [], False
        for word in self.argv:
            if word.startswith("--"):
                skip = word.partition("=")[0].replace("_", "-") == flag.replace("_", "-")
            if not skip:
                words.append(word)
        return self.stop.command([*words, flag, "true"])

    def _close_bar(self) -> None:
        for callback in self.trainer.callback_handler.callbacks:
            if (bar := getattr(callback, "training_bar", None)) is not None:
                bar.close()


def _functions(error: BaseException) -> list[str]:
    """Names of the functions that an error came through."""
    return [frame.name for frame in extract_tb(error.__traceback__)]


def _is_ours(error: BaseException) -> bool:
    """Whether the package raised an error itself, on finding something wrong, and not because of another one."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and error.__cause__ is None and Path(at.tb_frame.f_code.co_filename).is_relative_to(PACKAGE)
