"""Says it when a run has nothing to learn from: once when that has lasted, and once more at its end."""

import math
from dataclasses import dataclass
from typing import Any

from accelerate.logging import get_logger
from transformers import TrainerCallback

from ..config import CreditConfig


logger = get_logger(__name__)  # which speaks on the main process alone; the numbers are those of all

LASTS = 5  # generation batches in a row: of a single one, with few prompts, it may be chance
_ADVANTAGES, _CUT_OFF, _FLAT = (
    "credit/abs_advantage/quarter_",
    "completions/clipped_ratio",
    "credit/groups_without_signal",
)


@dataclass
class _Seen:
    """What became of the generation batches of one step.

    Attributes:
        batches: How many.
        reward: Their mean, NaN where nothing was scored.
        cut_off: Share of responses that did not end.
        flat: Share of groups whose rewards (of segments: whose values) do not differ.
        is_updated: Whether a loss was made of them.
        has_signal: Whether that had a token with an advantage other than 0.
    """

    batches: int
    reward: float
    cut_off: float
    flat: float
    is_updated: bool = False
    has_signal: bool = False


class NothingToLearn(TrainerCallback):
    """Watches the metrics of a trainer, which are gathered already, for batches without signal or without an end.

    Args:
        trainer ([`CreditTrainer`]):
            Its training metrics are read.
    """

    def __init__(self, trainer: Any) -> None:
        self._metrics: dict[str, list[float]] = trainer._metrics["train"]
        self._begin()

    def _begin(self) -> None:
        self._known: dict[str, int] = {}
        self._last: _Seen | None = None
        self._batches = 0
        self._in_a_row = {"signal": 0, "end": 0}
        self._in_all = {"signal": 0, "end": 0}
        self._said: dict[str, _Seen] = {}

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin()

    def on_step_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._known = {name: len(values) for name, values in self._metrics.items()}

    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        new = {name: values[self._known.get(name, 0) :] for name, values in self._metrics.items()}
        if rewards := new.get("reward"):  # a step that sampled: the batches before it are through
            self._close(args)
            cut_off, flat = _mean(new.get(_CUT_OFF, [])), _mean(new.get(_FLAT, []))
            self._last = _Seen(len(rewards), _mean(rewards), cut_off, flat)
        if self._last is not None:
            advantages = [x for name, values in new.items() if name.startswith(_ADVANTAGES) for x in values]
            self._last.is_updated |= bool(advantages)
            self._last.has_signal |= any(x > 0.0 for x in advantages)

    def on_train_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._close(args)
        for lack, seen in self._said.items():
            where = f"{self._in_all[lack]} of the {self._batches} generation batches"
            logger.warning(_SENTENCES[lack](where, seen, args))

    def _close(self, args: CreditConfig) -> None:
        seen, self._last = self._last, None
        if seen is None:
            return
        self._batches += seen.batches
        for lack, lacks in (("signal", not seen.has_signal), ("end", seen.cut_off == 1.0)):
            self._in_a_row[lack] = (self._in_a_row[lack] + seen.batches) * lacks
            self._in_all[lack] += seen.batches * lacks
            if self._in_a_row[lack] >= LASTS and not self._said.keys() & {lack, "signal"}:
                self._said[lack] = seen
                logger.warning(_SENTENCES[lack](f"the last {self._in_a_row[lack]} generation batches", seen, args))


def _no_signal(where: str, seen: _Seen, args: CreditConfig) -> str:
    if math.isnan(seen.reward):
        what = "no reward function scored a response, all returned None"
    elif seen.cut_off == 1.0 and args.mask_truncated_completions:
        what = "every response was cut off, and mask_truncated_completions=True leaves these out"
    elif seen.flat < 1.0:
        what = "rewards differ, but token_mask, whitening or the credit function leaves no token an advantage"
    elif args.rollouts != "none":
        what = f"the rewards of its rollouts give no segment an advantage (mean {seen.reward:.3g})"
    else:
        what = f"the rewards of a prompt's responses do not differ (mean {seen.reward:.3g})"
    moves = [f"{name}={getattr(args, name):g}" for name in ("beta", "entropy_coef") if getattr(args, name, 0.0) != 0.0]
    only = f" (what still moves the model: {', '.join(moves)})" if moves and seen.is_updated else ""
    return (
        f"nothing to learn from in {where}{only}: {what}. Usual causes: the reward never or always fires (look at "
        "log_completions=True, the reward function and the format of answers), the task is too hard or too easy (other "
        "data, more num_generations, a higher temperature), or responses are cut off before they answer "
        f"({100 * seen.cut_off:.0f} % are: raise max_completion_length={args.max_completion_length})."
    )


def _no_end(where: str, seen: _Seen, args: CreditConfig) -> str:
    return (
        f"no response ended by itself in {where}: all were cut off at max_completion_length="
        f"{args.max_completion_length}. Usual causes: the limit is too low (raise it), the model does not know how to "
        "end (its eos_token_id, its chat template), or what it writes has no end (a lower temperature, other prompts)."
    )


_SENTENCES = {"signal": _no_signal, "end": _no_end}


def _mean(values: list[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan
