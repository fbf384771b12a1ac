"""The callbacks that show what a run does: console lines, warnings, rollout log, plots and card."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from ..config import CreditConfig
from ..hub.results import ResultsCallback
from ..observe.console import ConsoleCallback, Sample
from ..observe.no_signal import NoSignalWarning
from ..observe.rollout_log import RolloutLog
from ..rollouts.prompts import PROMPT_RATES_FILE, PromptOrder
from ..runs.resumable import ResumableTrainer
from ..support.shown import reported


def add_observers(trainer: ResumableTrainer) -> tuple[RolloutLog, ResultsCallback]:
    """Adds our callbacks to a trainer. A console of ours, or the one that the user gave, replaces transformers' own."""
    default = PrinterCallback if trainer.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK
    for callback in [one for one in trainer.callback_handler.callbacks if type(one) is default][-1:]:
        trainer.remove_callback(callback)  # the last one is transformers' own, after those of the user
    if not _consoles(trainer):
        trainer.add_callback(ConsoleCallback(trainer))
    trainer.add_callback(NoSignalWarning(trainer._metrics["train"]))
    for order in [part for part in trainer.stateful if isinstance(part, PromptOrder)]:
        trainer.add_callback(PromptRatesFile(order))
    rollout_log, results = RolloutLog(trainer), ResultsCallback(trainer)
    trainer.add_callback(rollout_log)
    trainer.add_callback(results)
    return rollout_log, results


@contextmanager
def console_closed(trainer: ResumableTrainer) -> Iterator[None]:
    """Context manager of a training, at whose end the console stops, also where it was interrupted."""
    reported.clear()  # of an earlier run
    try:
        yield
    finally:
        for console in _consoles(trainer):
            console.close()


def note_sample(trainer: ResumableTrainer, rewards: torch.Tensor) -> None:
    """Gives the console, on the main process, the last response of a batch, as TRL logged it; `rewards` (N,) are those
    of the batch."""
    if trainer.processes.is_main:
        logs = trainer._logs
        for console in _consoles(trainer):
            console.sample = Sample(logs["prompt"][-1], logs["completion"][-1], rewards[-1])


def _consoles(trainer: ResumableTrainer) -> list[ConsoleCallback]:
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ConsoleCallback)]


class PromptRatesFile(TrainerCallback):
    """Writes `prompt_rates.jsonl` of a run that draws prompts by number to its folder: when training begins, with every
    checkpoint, and when training ends.

    Args:
        order ([`~trl_credit.rollouts.prompts.PromptOrder`]):
            Has the pass rates.
    """

    def __init__(self, order: PromptOrder) -> None:
        self._order = order

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._order.write(Path(args.output_dir) / PROMPT_RATES_FILE)

    on_save = on_train_end = on_train_begin
