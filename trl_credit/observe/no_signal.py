"""Warns when a run learns nothing: once after several such batches or updates, and again when training ends."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from accelerate.logging import get_logger
from transformers import TrainerCallback

from ..config import CreditConfig


logger = get_logger(__name__)  # logs on the main process only; the metrics are those of all processes

PATIENCE = 5  # consecutive generation batches, or updates, before the warning: a single one may be chance


@dataclass
class _Seen:
    """What happened to the generation batches of one step.

    Attributes:
        batches: Number of batches.
        reward: Mean reward, NaN if no response has one.
        cut_off: Share of responses that reached the length limit.
        flat: Share of groups whose rewards (with segments: values) are equal.
        advantages: Mean |A| of parts of responses, for each update on them; empty without an update.
    """

    batches: int
    reward: float
    cut_off: float
    flat: float
    advantages: list[float] = field(default_factory=list)


class MetricsWatch(TrainerCallback):
    """Knows which values a step added to the metrics of a trainer.

    Args:
        metrics (mapping of `str` to `list[float]`):
            The trainer's training metrics since the last log, already gathered over processes.
    """

    def __init__(self, metrics: Mapping[str, list[float]]) -> None:
        self._metrics = metrics

    def on_step_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._known = {name: len(values) for name, values in self._metrics.items()}

    def of_step(self) -> dict[str, list[float]]:
        """The values since the step began, by the name of their metric."""
        return {name: values[self._known.get(name, 0) :] for name, values in self._metrics.items()}


class NoSignalWarning(MetricsWatch):
    """Watches for generation batches without an advantage or in which no response ends, and for gradients of 0."""

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._last: _Seen | None = None
        # by symptom: how often it was looked for, how often it was there, and how often without a break
        self._looked, self._in_all, self._in_a_row = Counter(), Counter(), Counter()
        self._causes: dict[str, str] = {}
        self._warned: set[str] = set()

    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        new = self.of_step()
        if rewards := new.get("reward"):  # this step sampled, so training on the batches before it is over
            self._close(args)
            means = [_mean(new.get(name, ())) for name in ("completions/clipped_ratio", "credit/groups_without_signal")]
            self._last = _Seen(len(rewards), _mean(rewards), *means)
        advantages = new.get("credit/abs_advantage", [])
        if self._last is not None:
            self._last.advantages += advantages
        for is_zero in new.get("credit/zero_gradients", ()):
            cause = _zero_gradient(_mean(new.get("credit/clip_fraction", ())), args)
            self._count("zero", 1, is_zero > 0.0 and any(x > 0.0 for x in advantages), cause)

    def on_train_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._close(args)
        if 0 < self._in_all["zero"] == self._looked["zero"]:  # also in a short run
            self._warned.add("zero")
        for kind in self._warned:
            self._warn(kind, f"{self._in_all[kind]} of the {self._looked[kind]}")

    def _close(self, args: CreditConfig) -> None:
        """Ends the training on the last generation batches."""
        seen, self._last = self._last, None
        if seen is not None:
            self._count("signal", seen.batches, not any(x > 0.0 for x in seen.advantages), _no_signal(seen, args))
            if "signal" not in self._warned:
                self._count("end", seen.batches, seen.cut_off == 1.0, _no_end(args))

    def _count(self, kind: str, number: int, is_bad: bool, cause: str) -> None:
        self._looked[kind] += number
        self._in_all[kind] += number * is_bad
        self._in_a_row[kind] = (self._in_a_row[kind] + number) * is_bad
        if is_bad:
            self._causes[kind] = cause
        if self._in_a_row[kind] >= PATIENCE and kind not in self._warned:
            self._warned.add(kind)
            self._warn(kind, f"the last {self._in_a_row[kind]}")

    def _warn(self, kind: str, count: str) -> None:
        logger.warning(f"{_SYMPTOMS[kind].format(count)}{self._causes[kind]}")


_SYMPTOMS = {
    "signal": "nothing to learn from in {} generation batches",
    "end": "no response ended in {} generation batches",
    "zero": "the gradient was exactly 0 in {} updates",
}


def _no_signal(seen: _Seen, args: CreditConfig) -> str:
    terms = [f"{name}={value:g}" for name in ("beta", "entropy_coef") if (value := getattr(args, name, 0.0)) != 0.0]
    others = f" (the model still trains on {', '.join(terms)})" if terms and seen.advantages else ""
    reward = "no reward function scored a response" if math.isnan(seen.reward) else f"mean reward {seen.reward:.3g}"
    return (
        f"{others}: {reward}, {100 * seen.flat:.0f} % of groups have equal rewards, "
        f"{100 * seen.cut_off:.0f} % of responses are cut off. Usual causes: the reward is always or never given "
        "(check log_completions=True, the reward function and the format of answers), the task is too hard or too easy "
        "(other data, more num_generations, a higher temperature), responses are cut off before they answer (raise "
        f"max_completion_length={args.max_completion_length}), or token_mask, mask_truncated_completions, whitening or "
        "the credit function leaves no token an advantage."
    )


def _no_end(args: CreditConfig) -> str:
    return (
        f": all were cut off at max_completion_length={args.max_completion_length}. Usual causes: the limit is too low "
        "(raise it), the model cannot end a response (check eos_token_id and the chat template), its text never ends "
        "(a lower temperature, other prompts)."
    )


def _zero_gradient(clipped: float, args: CreditConfig) -> str:
    if clipped == 1.0:
        fix = f"every token was clipped: lower learning_rate={args.learning_rate:g} or num_iterations, or raise epsilon"
    else:
        fix = "check that the parameters that are trained (requires_grad, lora_target_modules) change the logits"
        if args.credit is not None:
            fix = f"try trl_credit.testing.check_credit on credit={args.credit!r}, and {fix}"
    return f", although tokens had advantages, so nothing was learned: {fix}."


def _mean(values: Sequence[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return fmean(known) if known else math.nan
