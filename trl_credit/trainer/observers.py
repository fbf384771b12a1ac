"""The callbacks that show what a run does: console lines, warnings, rollout log, plots and card."""

from transformers import PrinterCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from ..hub.results import ResultsCallback
from ..observe.console import ConsoleCallback
from ..observe.no_signal import NoSignalWarning
from ..observe.rollout_log import RolloutLog
from ..runs.resumable import ResumableTrainer


def add_observers(trainer: ResumableTrainer) -> tuple[RolloutLog, ResultsCallback]:
    """Adds our callbacks to a trainer. A console of ours, or the one that the user gave, replaces transformers' own."""
    default = PrinterCallback if trainer.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK
    callbacks = trainer.callback_handler.callbacks
    for added in [callback for callback in callbacks if type(callback) is default][-1:]:
        trainer.remove_callback(added)  # the last one is transformers' own, after those of the user
    if not any(isinstance(callback, ConsoleCallback) for callback in callbacks):
        trainer.add_callback(ConsoleCallback(trainer))
    trainer.add_callback(NoSignalWarning(trainer._metrics["train"]))
    rollout_log, results = RolloutLog(trainer), ResultsCallback(trainer)
    trainer.add_callback(rollout_log)
    trainer.add_callback(results)
    return rollout_log, results


def close_console(trainer: ResumableTrainer) -> None:
    """Ends the console's lines, also where training was interrupted."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ConsoleCallback):
            callback.close()
