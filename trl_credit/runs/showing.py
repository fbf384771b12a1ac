"""A trainer whose console, metrics and table of completions do not end what it does."""

import functools
import traceback
from typing import Any

from transformers import Trainer
from trl import GRPOTrainer

from ..rewards.steps import as_float
from ..support.shown import report, safe_console


def shows_safely(trainer: type) -> type:
    """Class decorator of a trainer: no print of a progress bar fails while it loads, evaluates or saves a model, and no
    text among its metrics or in its table of completions stops it where it logs."""
    for name in ("__init__", "evaluate", "save_model"):
        setattr(trainer, name, safe_console()(getattr(trainer, name)))
    trainer.log = _log
    return trainer


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
