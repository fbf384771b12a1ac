"""A trainer that goes on whatever happens to what it shows: console, trackers, metrics and its table of completions."""

import functools
import traceback
from collections.abc import Callable
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from trl import GRPOTrainer, RichProgressCallback

from ..rewards.steps import as_float
from ..support.shown import report, safe_console, shown


# callbacks that only show what a run does: progress, and the trackers that transformers knows, also as subclasses. An
# error of any other callback ends the run, as in TRL
SHOWN = (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK, RichProgressCallback)
SHOWN += tuple(INTEGRATION_TO_CALLBACK.values())
_HOOKS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


def shows_safely(trainer: type[GRPOTrainer]) -> type[GRPOTrainer]:
    """Class decorator of a trainer that what is shown does not stop: progress bars and prints, also of libraries and
    reward functions, callbacks in `SHOWN`, text among the metrics, and the table of completions."""
    for name in ("__init__", "save_model"):
        setattr(trainer, name, safe_console()(getattr(trainer, name)))
    for name in ("train", "evaluate", "predict"):
        setattr(trainer, name, _with_harmless_callbacks(getattr(trainer, name)))
    trainer.log = _log
    return trainer


def _with_harmless_callbacks(method: Callable) -> Callable:
    @functools.wraps(method)
    def safe(self: GRPOTrainer, *args: Any, **kwargs: Any) -> Any:
        for callback in self.callback_handler.callbacks:
            for name in _HOOKS if isinstance(callback, SHOWN) else ():
                if name not in vars(callback):  # from an earlier call
                    setattr(callback, name, shown(type(callback).__name__)(getattr(callback, name)))
        with safe_console():
            return method(self, *args, **kwargs)

    return safe


@functools.wraps(GRPOTrainer.log)
def _log(self: GRPOTrainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
    for name, values in self._metrics["train" if self.model.training else "eval"].items():
        numbers = [value if type(value) is float else as_float(value) for value in values]
        values[:] = [number for number in numbers if number is not None]
        if None in numbers:
            report(f"metric {name!r}", "values that are no numbers are left out")
    try:
        GRPOTrainer.log(self, logs, *args, **kwargs)
    except Exception as error:  # of the table, which TRL shows after all else, on the main process alone
        if any(frame.f_code is Trainer.log.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # of a callback
        report("the table of log_completions", error)
