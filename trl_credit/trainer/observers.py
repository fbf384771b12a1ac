"""The callbacks that show what a run does: console lines, warnings, rollout log, plots and card."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from trl import RichProgressCallback

from ..hub.results import ResultsCallback
from ..observe.console import ConsoleCallback
from ..observe.no_signal import NoSignalWarning
from ..observe.prompt_rates_file import PromptRatesFile
from ..observe.rollout_log import RolloutLog
from ..observe.samples import Sample
from ..observe.selector_warning import SelectorWarning, has_selector
from ..rollouts.prompt_order import PromptOrder
from ..runs.resumable import ResumableTrainer
from ..support.shown import reported, safe_console, shown


# callbacks that only show what a run does: progress, warnings, and the trackers that transformers knows, also as
# subclasses. An error of any other callback ends the run, as in TRL
SHOWN = (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK, RichProgressCallback)
SHOWN += (NoSignalWarning, SelectorWarning, *INTEGRATION_TO_CALLBACK.values())
_HOOKS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


def add_observers(trainer: ResumableTrainer) -> tuple[RolloutLog, ResultsCallback]:
    """Adds our callbacks to a trainer. A console of ours, or the one that the user gave, replaces transformers' own."""
    default = PrinterCallback if trainer.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK
    callbacks = trainer.callback_handler.callbacks
    for added in [callback for callback in callbacks if type(callback) is default][-1:]:
        trainer.remove_callback(added)  # the last one is transformers' own, after those of the user
    if not _consoles(trainer):
        trainer.add_callback(ConsoleCallback(trainer))
    trainer.add_callback(NoSignalWarning(trainer._metrics["train"]))
    if has_selector(trainer.args):
        trainer.add_callback(SelectorWarning(trainer._metrics["train"]))
    for part in trainer.stateful:
        if isinstance(part, PromptOrder):
            trainer.add_callback(PromptRatesFile(part))
    rollout_log, results = RolloutLog(trainer), ResultsCallback(trainer)
    trainer.add_callback(rollout_log)
    trainer.add_callback(results)
    return rollout_log, results


@contextmanager
def showing(trainer: ResumableTrainer) -> Iterator[None]:
    """Context manager of a training in which an error of what is shown ends nothing: of a stream, or of a callback in
    `SHOWN`. At its end the console stops, also where the training was interrupted."""
    reported.clear()  # of an earlier run
    with safe_console(), ExitStack() as stack:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, SHOWN):
                own = vars(callback)
                stack.callback(own.update, {name: own[name] for name in _HOOKS if name in own})
                for name in _HOOKS:
                    own[name] = shown(type(callback).__name__)(getattr(callback, name))
                    stack.callback(own.pop, name)
        for console in _consoles(trainer):
            stack.callback(console.close)
        yield


def note_sample(trainer: ResumableTrainer, rewards: torch.Tensor) -> None:
    """Gives the console, on the main process, the last response of a batch, as TRL logged it; `rewards` (N,) are those
    of the batch."""
    if trainer.processes.is_main:
        logs = trainer._logs
        for console in _consoles(trainer):
            console.sample = Sample(logs["prompt"][-1], logs["completion"][-1], rewards[-1])


def _consoles(trainer: ResumableTrainer) -> list[ConsoleCallback]:
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ConsoleCallback)]
