"""One readable line per logging step, above the progress bar, and a prompt with its response."""

import logging
import math
import re
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple, SupportsFloat

from rich.text import Text
from transformers import TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from ..runs.resumable import ResumableTrainer
from ..support.conversation import asked_in, response_text
from ..support.texts import plain
from .banner import banner


_LOGGER = logging.getLogger(__name__.partition(".")[0])

# metric, text, factor
_SHOWN = (
    ("loss", "loss {:+.4f}", 1),
    ("credit/clip_fraction", "clipped {:.1f} %", 100),
    ("completions/mean_length", "length {:.1f}", 1),
    ("completions/clipped_ratio", "cut off {:.1f} %", 100),
    ("credit/groups_without_signal", "no signal {:.1f} %", 100),
    ("credit/groups/sampled", "sampled {:.0f} prompts", 1),
    ("kl", "KL {:.2g}", 1),
    ("entropy", "entropy {:.2f}", 1),
    ("step_time", "{:.2f} s/step", 1),
)
_LABEL = 14  # columns, as before the paths that a run prints at its end
_LOG_WIDTH = 120  # columns where the output is no terminal
_LEAST_LOSS = 1e-3  # below, it is the rounding error of advantages whose mean is 0


class Sample(NamedTuple):
    """A response that was sampled for training.

    Attributes:
        prompt, completion: As TRL logs them: text, or the messages of a conversation.
        reward: Total reward, NaN if no function scored it. May be a tensor of one element, which is read from its
            device only where it is shown.
    """

    prompt: Any
    completion: Any
    reward: SupportsFloat


class ConsoleCallback(ProgressCallback):
    """The progress bar of transformers, with one line of the main metrics instead of the whole dict of logs.

    Example: `step   25  reward 0.842 ± 0.366  length 23.9  no signal 25.0 %  entropy 0.31  0.21 s/step`. Length is in
    tokens. `clipped` is the share of tokens that lose their gradient to clipping, `cut off` the share of responses that
    reached the length limit, and `no signal` the share of groups whose rewards are equal or whose segments have no
    advantage. With `groups` it is that of the batch that is trained on; `sampled` counts all prompts. The mean of each
    reward function follows the reward if there are several. A loss below 0.001 is left out.

    Before the lines come those of [`~trl_credit.observe.banner.banner`]. A prompt and a response are shown after the
    first step and at the end. Evaluation scores and warnings of this package get lines of their own. Every
    [`CreditTrainer`] has this callback instead of `ProgressCallback` and `PrinterCallback`.

    Args:
        trainer ([`CreditTrainer`], *optional*):
            The trainer that the first lines describe.

    Attributes:
        sample ([`Sample`] or `None`):
            A response of the last generation batch, on the main process. The trainer sets it.
    """

    def __init__(self, trainer: ResumableTrainer | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trainer = trainer
        self.sample: Sample | None = None
        self._shown: Sample | None = None
        self._warnings = _Warnings(self._show)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.sample = self._shown = None
        if self._trainer is not None and state.is_world_process_zero:
            resumed = [f"resumes after step {state.global_step}"] if state.global_step else []
            print(*banner(self._trainer), *resumed, sep="\n", flush=True)
        if not args.disable_tqdm:
            super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero:
            _LOGGER.addHandler(self._warnings)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)
        if self._shown is None:
            self._show_sample(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._show_sample(state)
        self.close()
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)

    def _show_sample(self, state: TrainerState) -> None:
        """Shows the last sample, unless it has been shown."""
        if self.sample is not self._shown:
            self._shown = self.sample
            for line in sample_lines(self.sample, step=state.global_step):
                self._show(line)

    def close(self) -> None:
        """Stops showing the package's warnings; also called when training raises."""
        _LOGGER.removeHandler(self._warnings)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        step = f"step {state.global_step:>5}"
        scores = {name.removeprefix("eval_"): value for name, value in logs.items() if re.match(r"eval_.*/\w+@", name)}
        if parts := [f"{name.replace('/', ' ')} {100 * value:.1f} %" for name, value in scores.items()]:
            self._show("  ".join([step, "evaluation", *parts]))
        for name in [name.removesuffix("loss") for name in logs if name.endswith("_loss") and "loss" not in logs]:
            if f"{name}reward" in logs:  # an evaluation, whose set may have a name
                set_name = [plain(name.removeprefix("eval_").rstrip("_"))] * (name != "eval_")
                self._show("  ".join([step, "evaluation", *set_name, _reward_of(logs, name)]))
        if "loss" not in logs:  # the end of training
            return
        # a step between two generation batches has no reward of its own
        parts = [step, _reward_of(logs, "")] if "reward" in logs else [step]
        each = {match[1]: value for name, value in logs.items() if (match := re.fullmatch(r"rewards/(.*)/mean", name))}
        if len(each) > 1:
            parts += [f"{plain(name)} {'–' if value is None else f'{value:.3f}'}" for name, value in each.items()]
        for key, text, factor in _SHOWN:
            if (value := logs.get(key)) and (key != "loss" or abs(value) >= _LEAST_LOSS):
                parts.append(text.format(value * factor))
        self._show("  ".join(parts))

    def _show(self, line: str) -> None:
        if self.training_bar is None:
            print(line, flush=True)
        else:
            self.training_bar.write(line)


def _reward_of(logs: dict[str, Any], prefix: str) -> str:
    mean, std = logs[f"{prefix}reward"], logs.get(f"{prefix}reward_std") or 0.0
    return "no reward" if mean is None else f"reward {mean:.3f} ± {std:.3f}"  # no function returned a number


class _Warnings(logging.Handler):
    """Shows the warnings of the package's loggers as lines above the progress bar."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._line = show

    def emit(self, record: logging.LogRecord) -> None:
        self._line(f"{record.levelname.lower()}: {record.getMessage().removeprefix('[RANK 0] ')}")


def sample_lines(sample: Sample, *, step: int) -> list[str]:
    """Prompt and response, each cut to the width of the terminal, without line breaks and control characters; `step`
    is the optimizer step that ended last."""
    width = shutil.get_terminal_size((_LOG_WIDTH, 24)).columns
    value = float(sample.reward)
    facts = f"  (step {step}, {'no reward' if math.isnan(value) else f'reward {value:.3g}'})"
    return [
        f"{'prompt':<{_LABEL}}{_cut(asked_in(sample.prompt), width - _LABEL)}",
        f"{'response':<{_LABEL}}{_cut(response_text(sample.completion), width - _LABEL - len(facts))}{facts}",
    ]


def _cut(text: str, width: int) -> str:
    # long texts are cut first: the width of every character is looked up
    line = Text(plain(" ".join(text[: 8 * max(width, 1)].split())))
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain
