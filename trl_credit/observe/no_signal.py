"""Warnings of a run that learns nothing, once after several such batches or updates and again when training ends, and
of a selector that can hardly help."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from accelerate.logging import get_logger
from transformers import TrainerCallback

from ..config import CreditConfig


logger = get_logger(__name__)  # logs on the main process only; the metrics are those of all processes

PATIENCE = 5  # consecutive generation batches, or updates, before the warning: a single one may be chance
UPDATES = 10  # whose mean share of noise decides about a selector: the share of a single update may be chance
LEAST_SHARE = 0.2
_NO_END_CAUSES = (
    "Usual causes: the limit is too low (raise it), the model cannot end a response (check eos_token_id and the chat "
    "template), its text never ends (a lower temperature, other prompts)."
)


@dataclass
class _Symptom:
    """How many batches or updates were checked, how many had the symptom, and how many of the last without a break."""

    text: str
    checked: int = 0
    total: int = 0
    in_a_row: int = 0
    cause: str = ""
    is_warned: bool = False

    def count(self, number: int, is_there: bool, cause: str) -> None:
        self.checked += number
        self.total += number * is_there
        self.in_a_row = (self.in_a_row + number) * is_there
        self.cause = cause if is_there else self.cause
        if self.in_a_row >= PATIENCE and not self.is_warned:
            self.warn(f"the last {self.in_a_row}")

    def warn(self, count: str) -> None:
        self.is_warned = True
        logger.warning(f"{self.text.format(count)}{self.cause}")


@dataclass
class _Batches:
    """The generation batches of one step.

    Attributes:
        number: Number of batches.
        reward: Mean reward, NaN if no response has one.
        cut_off: Share of responses that reached the length limit.
        equal: Share of groups whose rewards (with segments: values) are equal.
        advantages: Mean |A| of parts of responses, for each update on them; empty without an update.
    """

    number: int
    reward: float
    cut_off: float
    equal: float
    advantages: list[float] = field(default_factory=list)


class NoSignalWarning(TrainerCallback):
    """Watches for generation batches without an advantage or in which no response ends, for gradients of 0, and for a
    selector outside of whose selection there is hardly any gradient noise: the mean of `credit/noise_share` over the
    first 10 updates is below 0.2. On the two embedded tasks the share is 0.16 and 0.68.

    Args:
        metrics (mapping of `str` to `list[float]`):
            The trainer's training metrics since the last log, already gathered over processes.
    """

    def __init__(self, metrics: Mapping[str, list[float]]) -> None:
        self._metrics = metrics

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._last: _Batches | None = None
        self._signal = _Symptom("nothing to learn from in {} generation batches")
        self._end = _Symptom("no response ended in {} generation batches")
        self._gradient = _Symptom("the gradient was exactly 0 in {} updates")
        self._shares: list[float] = []

    def on_step_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._known = {name: len(values) for name, values in self._metrics.items()}

    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        new = {name: values[self._known.get(name, 0) :] for name, values in self._metrics.items()}
        if rewards := new.get("reward"):  # this step sampled, so training on the batches before it is over
            self._close(args)
            means = [_mean(new.get(name, ())) for name in ("completions/clipped_ratio", "credit/groups_without_signal")]
            self._last = _Batches(len(rewards), _mean(rewards), *means)
        advantages = new.get("credit/abs_advantage", [])
        if self._last is not None:
            self._last.advantages += advantages
        for is_zero in new.get("credit/zero_gradients", ()):
            shares = [_mean(new.get(f"credit/{name}", ())) for name in ("clip_fraction", "teacher/no_context")]
            cause = _zero_gradient(*shares, args)
            self._gradient.count(1, is_zero > 0.0 and any(x > 0.0 for x in advantages), cause)
        # an update whose passes were all skipped has no share, and one without noise NaN
        share = _mean(new.get("credit/noise_share", ()))
        has_selector = args.selector != "none" or args.top_entropy_quantile < 1.0
        if has_selector and not math.isnan(share) and len(self._shares) < UPDATES:
            self._shares.append(share)
            if len(self._shares) == UPDATES and (mean := fmean(self._shares)) < LEAST_SHARE:
                name = "selector" if args.selector != "none" else "top_entropy_quantile"
                logger.warning(
                    f"the selector can hardly help here: {mean:.2f} of the gradient noise lies outside of its "
                    f"selection (mean of {UPDATES} updates, {name}={getattr(args, name)!r}). Tune "
                    f"learning_rate={args.learning_rate:g} first, and compare with algo grpo over several seeds (see "
                    "trl-credit help which)."
                )

    def on_train_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._close(args)
        always = 0 < self._gradient.total == self._gradient.checked  # in a short run too
        for symptom in (self._signal, self._end, self._gradient):
            if symptom.is_warned or (always and symptom is self._gradient):
                symptom.warn(f"{symptom.total} of the {symptom.checked}")

    def _close(self, args: CreditConfig) -> None:
        """Ends the training on the last generation batches."""
        last, self._last = self._last, None
        if last is not None:
            self._signal.count(last.number, not any(x > 0.0 for x in last.advantages), _no_signal(last, args))
            limit = f"all were cut off at max_completion_length={args.max_completion_length}"
            if not self._signal.is_warned:
                self._end.count(last.number, last.cut_off == 1.0, f": {limit}. {_NO_END_CAUSES}")


def _no_signal(batches: _Batches, args: CreditConfig) -> str:
    terms = [f"{name}={value:g}" for name in ("beta", "entropy_coef") if (value := getattr(args, name, 0.0)) != 0.0]
    others = f" (the model still trains on {', '.join(terms)})" if terms and batches.advantages else ""
    no_score = "no reward function scored a response"
    reward = no_score if math.isnan(batches.reward) else f"mean reward {batches.reward:.3g}"
    return (
        f"{others}: {reward}, {100 * batches.equal:.0f} % of groups have equal rewards, "
        f"{100 * batches.cut_off:.0f} % of responses are cut off. Usual causes: the reward is always or never given "
        "(check log_completions=True, the reward function and the format of answers), the task is too hard or too easy "
        "(other data, more num_generations, a higher temperature), responses are cut off before they answer (raise "
        f"max_completion_length={args.max_completion_length}), or token_mask, mask_truncated_completions, whitening or "
        "the credit function leaves no token an advantage."
    )


def _zero_gradient(clipped: float, unscored: float, args: CreditConfig) -> str:
    if clipped == 1.0:
        fix = f"every token was clipped: lower learning_rate={args.learning_rate:g} or num_iterations, or raise epsilon"
    elif unscored == 1.0:
        right = f"no response had a reward of {args.reward_range[1]:g}, the largest of reward_range"
        lacking = "rows lack what it reads, or are longer with it than the teacher's model takes"
        why = right if args.reads_success else lacking
        fix = f"no row had a context for the teacher (teacher_prompt={args.teacher_prompt!r}): {why}"
    else:
        fix = "check that the parameters that are trained (requires_grad, lora_target_modules) change the logits"
        if args.credit is not None:
            fix = f"try trl_credit.testing.check_credit on credit={args.credit!r}, and {fix}"
    return f", although tokens had advantages, so nothing was learned: {fix}."


def _mean(values: Sequence[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return fmean(known) if known else math.nan
