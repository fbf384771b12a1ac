"""One readable line per logging step, above the progress bar."""

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from .sampling import describe_sampling


if TYPE_CHECKING:
    from ..trainer import CreditTrainer

_LOGGER = logging.getLogger(__name__.partition(".")[0])


# of what is 0 nothing is said
_SHOWN = (
    ("loss", "loss {:+.4f}", 1),
    ("credit/clip_fraction", "clipped {:.1f} %", 100),
    ("completions/mean_length", "length {:.1f}", 1),
    ("completions/clipped_ratio", "cut off {:.1f} %", 100),
    ("credit/groups_without_signal", "no signal {:.1f} %", 100),
    ("kl", "KL {:.2g}", 1),
    ("entropy", "entropy {:.2f}", 1),
    ("step_time", "{:.2f} s/step", 1),
)


class ConsoleCallback(ProgressCallback):
    """The progress bar of transformers, with a line of the numbers that one watches in place of the whole dict of logs.

    Example: `step   25  reward 0.842 ± 0.366  loss +0.0012  length 23.9  no signal 25.0 %  entropy 0.31  0.21 s/step`.
    Length is in tokens; `clipped` are tokens by their ratio, `cut off` responses by their length, `no signal` groups
    whose rewards do not differ, or none of whose segments has an advantage. Scores of an evaluation have a line of
    their own, and so have the warnings of this package. Every [`CreditTrainer`] has one, in place of `ProgressCallback`
    and `PrinterCallback`.

    Args:
        trainer ([`CreditTrainer`], *optional*):
            Of which the first line says what it trains on.
    """

    def __init__(self, trainer: "CreditTrainer | None" = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trainer = trainer
        self._warnings = _Warnings(self._show)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._trainer is not None and state.is_world_process_zero:
            data = self._trainer.train_dataset
            rows = f" on {len(data):,} prompts" if hasattr(data, "__len__") else ""
            print(f"{self._trainer.algorithm_name}{rows}: {describe_sampling(self._trainer.args)}", flush=True)
        if not args.disable_tqdm:
            super().on_train_begin(args, state, control, **kwargs)
        for handler in [h for h in _LOGGER.handlers if isinstance(h, _Warnings)]:  # of another trainer that broke off
            _LOGGER.removeHandler(handler)
        if state.is_world_process_zero:
            _LOGGER.addHandler(self._warnings)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)

    def close(self) -> None:
        """From here on warnings are not shown among its lines. Also where training broke off."""
        _LOGGER.removeHandler(self._warnings)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        scores = {name.removeprefix("eval_"): value for name, value in logs.items() if re.match(r"eval_.*/\w+@", name)}
        if scores:
            parts = [f"{name.replace('/', ' ')} {100 * value:.1f} %" for name, value in scores.items()]
            self._show(f"step {state.global_step:>5}  evaluation  " + "  ".join(parts))
        if "reward" not in logs:
            return
        mean, std = logs["reward"], logs.get("reward_std") or 0.0
        reward = "no reward" if mean is None else f"reward {mean:.3f} ± {std:.3f}"  # no function gave one
        parts = [f"step {state.global_step:>5}", reward]
        parts += [
            text.format(logs[key] * scale)
            for key, text, scale in _SHOWN
            if (key == "loss" and logs.get(key) is not None) or logs.get(key)
        ]
        self._show("  ".join(parts))

    def _show(self, line: str) -> None:
        if self.training_bar is None:
            print(line, flush=True)
        else:
            self.training_bar.write(line)


class _Warnings(logging.Handler):
    """What the package's loggers say, as lines above the bar rather than in the middle of it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._line = show

    def emit(self, record: logging.LogRecord) -> None:
        self._line(f"{record.levelname.lower()}: {record.getMessage().removeprefix('[RANK 0] ')}")
